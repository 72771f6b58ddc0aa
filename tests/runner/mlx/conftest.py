"""Small random models in model directories, made once a session."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from bus.wire.ids import TokenId
from bus.wire.kv import KvKind
from bus.wire.messages.requests import Sampling
from runner.engine import (
    PrefillChunk,
    RowFailure,
    RowId,
    RowSpec,
    SampledToken,
    StepPlan,
    StepResult,
)
from runner.mlx.engine import MlxEngine, load_engine
from tests.harness.families import MODELS, ODD, write_model

generate_step = sys.modules["mlx_lm.generate"].generate_step


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = write_model(
                tmp_path_factory.mktemp("models") / name, {**MODELS, **ODD}[name]
            )
        return made[name]

    return folder


class Drive:
    """Plays plans on an engine the way a runner does: always one step ahead.

    Rows are admitted with `admit`; each `step` issues one plan and reads the one before.
    """

    def __init__(self, engine: MlxEngine) -> None:
        self.engine = engine
        self.tokens: dict[RowId, list[SampledToken]] = {}
        self.failures: dict[RowId, RowFailure] = {}
        self.results: list[StepResult] = []
        self._count = itertools.count()
        self._unread = 0

    def step(self, **parts: Any) -> None:
        self.engine.issue(StepPlan(next(self._count), **parts))
        self._unread += 1
        while self._unread > 1:
            self._read()

    def finish(self, *rows: RowId) -> None:
        """Read everything and let `rows` go."""
        self.step(release=rows)
        self._read()

    def ids(self, row: RowId) -> list[int]:
        return [token.token for token in self.tokens.get(row, [])]

    def alone(self, spec: RowSpec, count: int, **parts: Any) -> list[int]:
        """`count` tokens of a row in one chunk and with nobody else in the batch."""
        self.step(admit=(spec,), prefill=((PrefillChunk(spec.row, 0, len(spec.tokens)),),), **parts)
        for _ in range(count - 1):
            self.step(decode=(spec.row,))
        self.finish(spec.row)
        return self.ids(spec.row)

    def together(self, specs: Sequence[RowSpec], count: int) -> list[list[int]]:
        """`count` tokens of each row, all of them beside each other."""
        rows = tuple(one.row for one in specs)
        prefill = tuple((PrefillChunk(one.row, 0, len(one.tokens)),) for one in specs)
        self.step(admit=tuple(specs), prefill=prefill)
        for _ in range(count - 1):
            self.step(decode=rows)
        self.finish(*rows)
        assert not self.failures
        return [self.ids(row) for row in rows]

    def _read(self) -> None:
        result = self.engine.read()
        self.results.append(result)
        self._unread -= 1
        for token in result.tokens:
            self.tokens.setdefault(token.row, []).append(token)
        for failure in result.failures:
            self.failures[failure.row] = failure


@pytest.fixture(scope="session")
def load() -> Iterator[Callable[..., MlxEngine]]:
    """`load_engine`, closed when all is over."""
    with contextlib.ExitStack() as stack:

        def loaded(path: Path, **parts: Any) -> MlxEngine:
            engine = load_engine(path, **{"memory_limit_bytes": 4 << 30, **parts})
            stack.callback(engine.close)
            return engine

        yield loaded


@pytest.fixture(scope="session")
def engine(
    load: Callable[..., MlxEngine], model_folder: Callable[[str], Path]
) -> Callable[[str], MlxEngine]:
    loaded: dict[str, MlxEngine] = {}

    def engine_of(name: str) -> MlxEngine:
        if name not in loaded:
            loaded[name] = load(model_folder(name))
        return loaded[name]

    return engine_of


@pytest.fixture
def drive(engine: Callable[[str], MlxEngine]) -> Callable[[str], Drive]:
    return lambda name: Drive(engine(name))


_rows = itertools.count(1)


def spec(tokens: Sequence[int], **parts: Any) -> RowSpec:
    """A greedy row, unless `parts` says otherwise."""
    parts = {"sampling": Sampling(temperature=0.0), "seed": 1, **parts}
    return RowSpec(RowId(next(_rows)), tuple(TokenId(t) for t in tokens), **parts)


def holds_as(folder: Path, kind: KvKind, held: str, tokens: int) -> None:
    """Fail unless the model in `folder`, asked to hold KV as `kind`, holds it as `held`, and two
    rows beside each other say so many `tokens` as each alone."""
    engine = load_engine(folder, memory_limit_bytes=4 << 30, kv=kind)
    try:
        player = Drive(engine)
        assert engine.facts.extra["kv"] == held
        assert engine.facts.batches_ragged
        prompts = [
            [3 + (7 * at + number) % 250 for at in range(9 + 20 * number)] for number in (0, 1)
        ]
        wanted = [player.alone(spec(one), tokens) for one in prompts]
        assert player.together([spec(one) for one in prompts], tokens) == wanted
    finally:
        engine.close()


@pytest.fixture
def new_row() -> Callable[..., RowSpec]:
    return spec


@pytest.fixture(scope="session")
def raw_greedy(engine: Callable[[str], MlxEngine], model_folder: Callable[[str], Path]):
    """What mlx-lm's own loop makes of a prompt, with the margin of each choice."""
    models: dict[str, Any] = {}

    def run(name: str, prompt: Sequence[int], count: int) -> list[tuple[int, float]]:
        if name not in models:
            models[name], _ = load_model(model_folder(name))
        steps = generate_step(mx.array(list(prompt)), models[name], max_tokens=count)
        made: list[tuple[int, float]] = []
        for token, logprobs in steps:
            best = mx.sort(logprobs)[-2:].tolist()
            made.append((int(token), best[1] - best[0]))
        return made

    return run
