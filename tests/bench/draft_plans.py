"""What drafts of several rows are worth, in virtual time. Run by hand:

    python -m tests.bench.draft_plans [--tokens 256]

The real scheduler plans the recorded texts of `tests.bench.speculation`; a fake engine replays
them. A step takes what it took at load on two cores (32 M parameters, float32, OpenBLAS). So the
figures depend on the decisions alone, and not on what else the machine does. The cost of reading a
step before the next plan is not included; the count of such steps is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import httpx
import numpy as np
from tokenizers import Tokenizer

from bus.wire.ids import RequestId, TokenId
from runner.engine import StepPlan
from runner.schedule import RowKey, ScheduleSettings
from tests.bench.models import TINY
from tests.bench.speculation import replay_texts
from tests.harness.engine import FakeEngine, FakeRow, facts
from tests.harness.scheduling import Loop, prepared

ALONE = ((2, 1.07), (3, 1.15), (5, 1.35), (9, 1.75), (17, 2.6), (33, 4.5))
SHARED = (
    (4, ((2, 1.35), (3, 1.68), (5, 2.2), (9, 3.4), (17, 5.9))),
    (16, ((2, 1.55), (3, 2.1), (5, 3.2), (9, 5.8))),
)
"""The costs of steps by their columns, in plain steps."""
PLAIN_MS = {1: 15.4, 4: 20.6, 8: 25.7, 16: 36.5}


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """The value at a place between measured points, by linear interpolation."""
    places, values = [place for place, _ in points], [value for _, value in points]
    return float(np.interp(at, places, values))


def step_s(rows: int, columns: int) -> float:
    """The seconds of a step."""
    measured = {1: ALONE, **dict(SHARED)}
    costs = [(of_rows, between([(1, 1.0), *pairs], columns)) for of_rows, pairs in measured.items()]
    return between(list(PLAIN_MS.items()), rows) * between(costs, rows) / 1000


@dataclass
class Replayed(FakeEngine):
    """Rows say recorded texts, by their prompts."""

    texts: dict[tuple[int, ...], list[int]] = field(
        default_factory=dict[tuple[int, ...], list[int]]
    )

    def choose(self, row: FakeRow) -> TokenId:
        text = self.texts[tuple(row.spec.tokens)]
        return TokenId(text[(len(row.tokens) - len(row.spec.tokens)) % len(text)])

    def _run(self, plan: StepPlan) -> None:
        super()._run(plan)
        if plan.decode and not plan.prefill:
            columns = 1 + max((len(draft) for _, draft in plan.drafts), default=0)
            took_s = step_s(len(plan.decode), columns)
            self.unread.append(replace(self.unread.pop(), step_s=took_s))


@dataclass
class Outcome:
    """Tokens per second of all rows; when each row ended; steps, those with drafts, and those that
    were read before the next plan."""

    tokens_per_s: float
    ends_s: list[float]
    steps: int
    wide: int
    read_first: int


def played(pairs: list[tuple[list[int], list[int]]], *, drafts: bool) -> Outcome:
    """Rows with these prompts and texts, from the moment at which every prompt is computed."""
    model = facts(
        verifies=True,
        draft_costs=ALONE,
        shared_draft_costs=SHARED,
        kv_bytes=10**8,
        context_tokens=4096,
    )
    loop = Loop(model, ScheduleSettings(speculate="ngram" if drafts else "off"))
    engine = Replayed(loop.facts, loop.costs)
    loop.engine = engine
    keys: list[RowKey] = []
    for at, (prompt, text) in enumerate(pairs):
        own = [300 + at, *prompt]
        engine.texts[tuple(own)] = text
        loop.submit(prepared(f"r{at}", own, max_tokens=len(text)))
        keys.append(RowKey(RequestId(f"r{at}"), 0))
    while not all(loop.made.get(key) for key in keys):
        loop.turn()
        for key in loop.made:
            loop.scheduler.pause(key, loop.now)
    began_at, before, first = loop.now, sum(map(len, loop.made.values())), len(loop.plans)
    for key in keys:
        loop.scheduler.resume(key)
    read_first = 0
    while not loop.scheduler.is_empty:
        unread, plans = loop.scheduler.unread, len(loop.plans)
        loop.turn()
        read_first += unread == 1 and len(loop.plans) == plans
    assert [loop.made[key] for key in keys] == [text for _, text in pairs]
    after = sum(map(len, loop.made.values())) - before
    plans = loop.plans[first:]
    return Outcome(
        after / (loop.now - began_at),
        [loop.token_at[key][-1] - began_at for key in keys],
        len(plans),
        sum(bool(plan.drafts) for plan in plans),
        read_first,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256)
    tokens = parser.parse_args().tokens
    assert httpx.__version__
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    for streams in (1, 4, 16):
        texts = [replay_texts(encode, tokens, stream) for stream in range(streams)]
        kinds = list(texts[0])
        for kind in (*kinds, "all"):
            pairs = [
                of_stream[kinds[at % len(kinds)] if kind == "all" else kind]
                for at, of_stream in enumerate(texts)
            ]
            plain, drafted = played(pairs, drafts=False), played(pairs, drafts=True)
            rows = zip(drafted.ends_s, plain.ends_s, strict=True)
            slowest = max(with_drafts / without for with_drafts, without in rows)
            sys.stdout.write(
                f"{streams:2} x {kind:7} {drafted.tokens_per_s / plain.tokens_per_s:.2f} x the "
                f"tokens/s; the slowest row takes {slowest:.2f} x the time; {plain.steps} -> "
                f"{drafted.steps} steps, {drafted.wide} with drafts, {drafted.read_first} read "
                "first\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
