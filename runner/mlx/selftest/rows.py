"""Talks to the engine: issues plans, one step ahead, like the scheduler.

Rows are greedy by default. The ids of rows are never reused.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from runner.engine import Engine, PrefillChunk, RowId, RowSpec, SampledToken, StepPlan

GREEDY = Sampling(temperature=0.0)
_ids = itertools.count(1)


class EngineRowFailed(Exception):
    """The engine failed a row; `args[0]` is its message."""


def new_row(
    tokens: Sequence[int],
    sampling: Sampling = GREEDY,
    *,
    seed: int = 1,
    logprobs: int | None = None,
) -> RowSpec:
    """Return a row with a new id."""
    prompt = tuple(TokenId(token) for token in tokens)
    return RowSpec(RowId(next(_ids)), prompt, sampling, seed, logprobs=logprobs)


def whole(row: RowSpec, start: int = 0) -> PrefillChunk:
    """Return the chunk of all prompt tokens from `start` on."""
    return PrefillChunk(row.row, start, len(row.tokens))


class RowDriver:
    """Issues plans to one engine, and collects the sampled tokens of each row."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._tokens: dict[RowId, list[SampledToken]] = {}
        self._steps = itertools.count()
        self._unread = 0

    def step(self, **parts: Any) -> None:
        """Issue a plan, and read the result of the plan before it. Raises EngineRowFailed if a row
        failed."""
        self.engine.issue(StepPlan(next(self._steps), **parts))
        self._unread += 1
        while self._unread > 1:
            self._read()

    def finish(self, *rows: RowId) -> None:
        """Release rows, and read the results of all plans."""
        self.step(release=rows)
        self._read()

    def sampled(self, row: RowId) -> list[SampledToken]:
        """Return the tokens of a row, in order."""
        return self._tokens.get(row, [])

    def alone(self, row: RowSpec, count: int) -> list[SampledToken]:
        """Return `count` tokens of a row whose prompt is one chunk, and which decodes alone."""
        self.step(admit=(row,), prefill=((whole(row),),))
        for _ in range(count - 1):
            self.step(decode=(row.row,))
        self.finish(row.row)
        return self.sampled(row.row)[:count]

    def together(self, rows: Sequence[RowSpec], count: int) -> list[list[SampledToken]]:
        """Return `count` tokens of each row; all rows decode in one batch."""
        names = tuple(row.row for row in rows)
        self.step(admit=tuple(rows), prefill=tuple((whole(row),) for row in rows))
        for _ in range(count - 1):
            self.step(decode=names)
        self.finish(*names)
        return [self.sampled(name)[:count] for name in names]

    def _read(self) -> None:
        result = self.engine.read()
        self._unread -= 1
        for failure in result.failures:
            raise EngineRowFailed(failure.message)
        for sampled in result.tokens:
            self._tokens.setdefault(sampled.row, []).append(sampled)
