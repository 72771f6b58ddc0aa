# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: the forwards of a step, of prompts and of the decode batch.

Chunks of a group run as one padded batch where the model's KV allows, else one after the
other. Rows that decode share a batch (`lane`); a model whose rows cannot share one computes
them one by one, each on its own caches. What is sampled stays on the device.

In a group every rank makes the same calls; where something goes wrong that the others would not
know of, it is raised and ends the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import mlx.core as mx
import numpy as np

from runner.engine import PrefillChunk, RowFailure
from runner.mlx.kv.padded_batch import GroupKV, GroupShape
from runner.mlx.kv.prefixes import evaluated
from runner.mlx.microbatch import Lane, lane_for, record
from runner.mlx.model.capabilities import Shape, Trial, new_caches, trace_agrees
from runner.mlx.model.compiled_decode import TracedDecode
from runner.mlx.model.last_token_head import NarrowHead
from runner.mlx.ranks.comm import Company
from runner.mlx.ranks.pipeline_stage import Part
from runner.mlx.sampling.draws import Drawn
from runner.mlx.sampling.pending_step import Outcome
from runner.mlx.sampling.row import EngineRow
from runner.mlx.sampling.sampler import Chooser, FollowingChooser, LeadingChooser

PART_TOKENS = 64
"""A part of a group that a pipeline computes by itself has so many tokens or more: fewer cost
hardly less."""

Work = tuple[EngineRow, PrefillChunk]


class Forward:
    """One model, its decode lanes, and how rows pass through both."""

    def __init__(
        self,
        model: Any,
        shape: Shape,
        trial: Trial,
        head: NarrowHead,
        company: Company | None = None,
    ) -> None:
        self._model = model
        self._shape = shape
        self._trial = trial
        self._head = head
        self._company = company
        self._traced: TracedDecode | None = None
        self._chooser = self._new_chooser()
        self._lanes = self._new_lanes()

    def new_caches(self, reserve: int) -> list[Any]:
        """A row's own empty caches with room for `reserve` tokens."""
        return new_caches(self._model, self._shape.plain, reserve)

    def traces(self) -> bool:
        """Whether the model allows to trace small batches: tried out."""
        model = self._model
        with model.rehearsal() if isinstance(model, Part) else nullcontext():
            return self._trial.batches_ragged and trace_agrees(model, self._shape)

    def trace(self) -> None:
        """Trace small batches from now on."""
        self._traced = TracedDecode(self._model, len(self._shape.plain))

    def caches_of(self, row: EngineRow) -> list[Any]:
        """The row's caches; copies when they are in the batch."""
        return self._lanes[row.lane].caches_of(row.name) if row.batched else row.caches

    @property
    def nbytes(self) -> int:
        """Of the rows that decode."""
        return sum(lane.batch.nbytes for lane in self._lanes)

    def close(self) -> None:
        self._traced = None
        self._lanes = self._new_lanes()

    def _new_chooser(self) -> Chooser:
        company = self._company
        if company is None or company.leads:
            return LeadingChooser(self._shape.vocabulary, company)
        return FollowingChooser(company)

    def _new_lanes(self) -> list[Lane]:
        count = 1 if self._company is None else self._company.lanes
        parts = self._model, self._shape, self._trial
        return [Lane(*parts, self._new_chooser(), self._company) for _ in range(count)]

    # Prompts.

    def prefill(self, group: Sequence[Work], outcome: Outcome) -> None:
        """Compute chunks; rows whose last one this is get their first token."""
        fit = [work for work in group if self._follows(work, outcome)]
        for part in self._parts(fit):
            self._prefill_part(part, outcome)

    def _parts(self, fit: list[Work]) -> list[list[Work]]:
        """Which chunks are computed together. Stages of a pipeline work at once only where there
        are as many parts."""
        if not self._trial.groups:
            return [[work] for work in fit]
        lanes = 1 if self._company is None else self._company.lanes
        tokens = sum(chunk.stop - chunk.start for _, chunk in fit)
        count = max(1, min(lanes, len(fit), tokens // PART_TOKENS))
        size = max(1, -(-len(fit) // count))
        return [fit[at : at + size] for at in range(0, len(fit), size)]

    def _follows(self, work: Work, outcome: Outcome) -> bool:
        row, chunk = work
        follows = row.computed in (0, chunk.start) and not row.batched
        if follows and chunk.start < chunk.stop <= len(row.spec.tokens):
            return True
        outcome.failures.append(
            RowFailure(
                row.name,
                "internal",
                f"chunk {chunk.start}..{chunk.stop} of a row with {row.computed} computed",
            )
        )
        return False

    def _prefill_part(self, part: Sequence[Work], outcome: Outcome) -> None:
        try:
            drawn, arrays = self._chunks(part, outcome)
        except Exception as error:
            if self._company is not None:
                raise
            message = f"{type(error).__name__}: {error}"
            outcome.failures.extend(RowFailure(row.name, "internal", message) for row, _ in part)
            return
        company = self._company
        if company is None:
            mx.async_eval([*drawn, *arrays])
        elif company.pipes and company.holds:
            awaited = drawn or company.arriving
            company.start([*drawn, *arrays])
            # Not the caches: they change in place, and the step that changes them may be held.
            outcome.prefilled.extend(awaited)
            return
        else:
            company.give(arrays if company.defers else [*drawn, *arrays])
        outcome.prefilled.extend([*drawn, *arrays])

    def _chunks(
        self, part: Sequence[Work], outcome: Outcome
    ) -> tuple[list[mx.array], list[mx.array]]:
        """What is drawn, and what is computed besides; neither is evaluated."""
        starts = [row.computed for row, _ in part]
        lengths = [chunk.stop - start for (_, chunk), start in zip(part, starts, strict=True)]
        widest = max(lengths)
        tokens = np.zeros((len(part), widest), dtype=np.int32)
        for index, ((row, chunk), start) in enumerate(zip(part, starts, strict=True)):
            tokens[index, : lengths[index]] = row.spec.tokens[start : chunk.stop]
        if len(part) == 1:
            caches = part[0][0].caches
        else:
            shape = GroupShape(starts, lengths)
            own = [row.caches for row, _ in part]
            caches = [GroupKV(shape, layer) for layer in zip(*own, strict=True)]
        inputs = mx.array(tokens)
        for row, chunk in part:
            row.computed = chunk.stop
        last = [index for index, (row, _) in enumerate(part) if row.prefilled]

        def run() -> mx.array:
            return self._model(inputs, cache=caches)

        if not last:
            out = run()
            owed = [] if self._company is None else self._company.owed(out)
            return [], [*owed, *evaluated(caches)]
        logits = self._head.logits(run, last, [lengths[index] - 1 for index in last])
        drawn = self._first_tokens([part[index][0] for index in last], logits, outcome)
        return drawn.arrays(), evaluated(caches)

    def _first_tokens(self, rows: Sequence[EngineRow], logits: mx.array, outcome: Outcome) -> Drawn:
        drawn = self._chooser.choose(rows, logits, outcome)
        for index, row in enumerate(rows):
            row.token = drawn.tokens[index : index + 1]
        record(outcome.first, drawn, list(enumerate(rows)))
        return drawn

    # Decoding.

    def decode(self, rows: Sequence[EngineRow], outcome: Outcome) -> None:
        """One token for each row; all have been prefilled."""
        ready = [row for row in rows if self._can_decode(row, outcome)]
        if not ready:
            return
        if self._trial.batches_ragged:
            self._decode_together(ready, outcome)
            return
        for row in ready:
            self._decode_alone(row, outcome)

    def leave(self, rows: Sequence[EngineRow]) -> None:
        """Forget rows, in the batch or not."""
        inside = [row for row in rows if row.batched]
        for row in rows:
            row.caches = []
            row.batched = False
        for number, lane in enumerate(self._lanes):
            gone = [row for row in inside if row.lane == number]
            if gone:
                lane.leave(gone)

    def _can_decode(self, row: EngineRow, outcome: Outcome) -> bool:
        if row.prefilled and (row.batched or row.token is not None):
            return True
        message = f"decode of a row with {row.computed} of {len(row.spec.tokens)} computed"
        outcome.failures.append(RowFailure(row.name, "internal", message))
        return False

    def _decode_together(self, rows: Sequence[EngineRow], outcome: Outcome) -> None:
        lengths = [len(lane) for lane in self._lanes]
        for row in rows:
            if not row.batched:
                row.lane = lane_for(lengths)
                lengths[row.lane] += 1
        for number, lane in enumerate(self._lanes):
            own = [row for row in rows if row.lane == number]
            if own:
                lane.step(own, outcome, self._traced)

    def _decode_alone(self, row: EngineRow, outcome: Outcome) -> None:
        assert row.token is not None
        if self._company is not None:
            self._company.settle(None)
        logits = self._model(row.token[None], cache=row.caches)[:, -1]
        drawn = self._chooser.choose([row], logits, outcome)
        if self._company is None:
            mx.async_eval(drawn.arrays())
        elif not self._company.defers:
            self._company.give(drawn.arrays())
        row.token = drawn.tokens
        record(outcome.decoded, drawn, [(0, row)])
