# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: the rows of one decode batch, from seat to seat over the steps.

An engine has one lane. A pipeline has as many as stages, so that a stage computes one lane while
the next stage computes another: GPipe's micro-batches, without its flushes, for a lane's next
step waits for its own tokens alone. Which lane a row joins follows from the plans alone, so it is
the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from runner.engine import RowId
from runner.mlx.kv.batch import DecodeBatch
from runner.mlx.kv.prefixes import evaluated
from runner.mlx.model.capabilities import Shape, Trial
from runner.mlx.model.compiled_decode import TracedDecode
from runner.mlx.ranks.comm import Company
from runner.mlx.sampling.draws import Drawn
from runner.mlx.sampling.pending_step import DrawnRows, Outcome
from runner.mlx.sampling.row import EngineRow
from runner.mlx.sampling.sampler import Chooser

FULL_ROWS = 4
"""Another lane is opened when every open one has so many rows: smaller batches gain nothing."""


def lane_for(lengths: Sequence[int]) -> int:
    """Which lane a new row joins, of lanes with so many rows each: the shortest of those that
    are open, or the next one where they are full; the first of equals."""
    opened = max((at for at, length in enumerate(lengths) if length), default=0)
    if opened + 1 < len(lengths) and all(one >= FULL_ROWS for one in lengths[: opened + 1]):
        opened += 1
    return min(range(opened + 1), key=lambda at: lengths[at])


def record(into: list[DrawnRows], drawn: Drawn, rows: Sequence[tuple[int, EngineRow]]) -> None:
    """Note which rows' tokens a draw holds: (index in the arrays, row)."""
    for index, row in rows:
        if row.matcher is not None:
            row.unread = (drawn.tokens, index)
    listed = tuple((index, row.name, row.spec.logprobs or 0) for index, row in rows)
    into.append(DrawnRows(drawn, listed))


class Lane:
    """One decode batch and who sits where in it."""

    def __init__(
        self, model: Any, shape: Shape, trial: Trial, chooser: Chooser, company: Company | None
    ) -> None:
        self.batch = DecodeBatch(shape.plain, holes=trial.slabs)
        self._model = model
        self._chooser = chooser
        self._company = company
        self._in_batch: dict[int, EngineRow] = {}
        self._heard: mx.array | None = None

    def __len__(self) -> int:
        return len(self._in_batch)

    def caches_of(self, name: RowId) -> list[Any]:
        """Copies of the caches of a row in the batch."""
        return self.batch.take(name)[0]

    def step(
        self, rows: Sequence[EngineRow], outcome: Outcome, traced: TracedDecode | None
    ) -> None:
        """One token for exactly these rows."""
        self._seat(rows)
        self.batch.open_step()
        out = traced.logits(self.batch) if traced is not None else None
        if out is None:
            inputs = self.batch.tokens[:, None]
            out = self._model(inputs, cache=self.batch.caches())[:, -1]
        if self._company is not None and self._heard is not None:
            self._company.settle(self._heard)
        seated = list(self._in_batch.items())
        slots = [self._in_batch.get(slot) for slot in range(len(self.batch))]
        drawn = self._chooser.choose_again(slots, out, outcome)
        if self._company is None:
            mx.async_eval(drawn.arrays())
        elif not self._company.defers:
            self._company.start(drawn.arrays())
        self._heard = drawn.tokens
        self.batch.close_step(drawn.tokens)
        record(outcome.decoded, drawn, seated)

    def leave(self, rows: Sequence[EngineRow]) -> None:
        """These rows, marked as outside already, give up their slots."""
        self._chooser.settle()
        self._reslot(self.batch.leave([row.name for row in rows]))

    def _seat(self, rows: Sequence[EngineRow]) -> None:
        """Make the batch hold exactly these rows."""
        wanted = {row.name for row in rows}
        parked = [row for row in self._in_batch.values() if row.name not in wanted]
        joining = [row for row in rows if not row.batched]
        if parked or joining:
            self._chooser.settle()
            if self._company is not None:
                self._company.launch()
                self._company.settle(None)
        for row in parked:
            row.caches, row.token = self.batch.take(row.name)
            mx.eval(evaluated(row.caches), row.token)
            row.batched = False
        if parked:
            self._reslot(self.batch.leave([row.name for row in parked]))
        for row in joining:
            self._join(row)
        if self.batch.holes:
            kept = self.batch.close_holes()
            if kept is not None:
                self._chooser.settle()
                self._reslot(kept)

    def _join(self, row: EngineRow) -> None:
        assert row.token is not None
        length = row.draw.position - 1
        slot = self.batch.join(row.name, row.caches, length, row.token)
        self._in_batch[slot] = row
        row.caches, row.token, row.batched = [], None, True

    def _reslot(self, kept: list[int] | None) -> None:
        if kept is None:
            self._in_batch = {s: row for s, row in self._in_batch.items() if row.batched}
        else:
            self._in_batch = {
                new: self._in_batch[old]
                for new, old in enumerate(kept)
                if old in self._in_batch and self._in_batch[old].batched
            }
