"""A runner process that says what a script tells it: `python -P -m tests.harness.scripted_runner`.

Everything but the engine is the real one: links, lead role, scheduler, template, tokenizer, parsers
of calls and of thinking. The engine is the fake one, which holds the scheduler to its rules; what a
row says is the script's last line whose mark stands in the row's prompt, word for word, in the
model's own markup. `SHOAL_TEST_SCRIPT` names the file: a JSON list of [mark, text].
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bus.process.identity import node_id
from bus.wire.ids import TokenId
from bus.wire.messages.control import RunnerSpec
from conf.settings import load_settings
from runner import __main__ as real
from runner.engine import Engine, EngineFacts, LoadProgress, RowId
from runner.group.lockstep import RankContext
from runner.roles.role import Factories, Progressed
from runner.service import run_slot
from runner.text import ModelTokenizer
from tests.harness.engine import FakeEngine, FakeRow, StepCosts
from tests.harness.faulty_runner import no_group

Line = tuple[str, str]
"""A mark, and what is said where it is the last that stands in the prompt."""
COSTS = StepCosts(1e-6, 1e-6, 1e-6, 1e-9)
"""Next to nothing, so that prompts of any length are computed in few steps."""


@dataclass
class ScriptedEngine(FakeEngine):
    """The fake engine, whose rows say the lines of a script."""

    script: Sequence[Line] = ()
    tokenizer: ModelTokenizer | None = None
    saying: dict[RowId, list[int]] = field(default_factory=dict[RowId, list[int]])

    def choose(self, row: FakeRow) -> TokenId:
        """Return the next token of the row's line, and the end of the text after the last."""
        row_id = row.spec.row
        if row_id not in self.saying:
            self.saying[row_id] = self._line(row)
        line = self.saying[row_id]
        return TokenId(line[min(len(row.tokens) - row.prompt_tokens, len(line) - 1)])

    def _line(self, row: FakeRow) -> list[int]:
        assert self.tokenizer is not None
        prompt = self.tokenizer.decode(row.tokens[: row.prompt_tokens])
        *_, said = [text for mark, text in self.script if mark in prompt]
        return [*self.tokenizer.encode(said), min(self.tokenizer.eos_token_ids)]


def load_engine(spec: RunnerSpec, context: RankContext | None, progress: Progressed) -> Engine:
    """Return an engine for the script and the model's tokenizer."""
    progress(LoadProgress("ready", 1000, 1000))
    tokenizer = ModelTokenizer(Path(spec.path))
    script = json.loads(Path(os.environ["SHOAL_TEST_SCRIPT"]).read_text())
    facts = EngineFacts(
        weights_bytes=1000,
        context_tokens=spec.context_tokens,
        vocabulary=tokenizer.vocabulary,
        kv_bytes_per_token=1,
        kv_bytes_fixed=0,
        batches_ragged=True,
        trims=True,
        eos_token_ids=tokenizer.eos_token_ids,
        memory_limit_bytes=1 << 30,
    )
    return ScriptedEngine(
        facts, COSTS, script=script, tokenizer=tokenizer, has_followers=spec.size > 1
    )


def main() -> int:
    """Serve slot 00; returns its exit code."""
    settings = load_settings()
    return run_slot(
        "00",
        node=node_id(settings.paths.state),
        endpoints=settings.endpoints,
        log_level="info",
        keys=settings.key_files,
        factories=Factories(
            load_engine=load_engine,
            load_follower=no_group,
            load_embedder=no_group,
            load_text=real.load_text,
            load_inputs=no_group,
            form_group=no_group,
            open_exchanges=no_group,
            open_maker=no_group,
        ),
    )


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
