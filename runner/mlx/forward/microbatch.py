# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: runs the steps of one decode batch (a microbatch). A row's slot is its index in the
arrays of the batch.

An engine without a pipeline has one microbatch. A pipeline has as many as stages, so that one stage
computes a microbatch while the next stage computes another one (as in GPipe). The next step of a
microbatch waits only for the tokens of this microbatch, so the pipeline need not be drained between
steps. Every rank puts a row into the same microbatch, because that depends on the plans alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from bus.wire.ids import TokenId
from runner.engine import RowFailure, RowId
from runner.mlx.adapters import AdapterBank
from runner.mlx.kv import DecodeBatch, Shape, evaluated, open_draft_step
from runner.mlx.model.capabilities import Capabilities
from runner.mlx.model.compiled_decode import CompiledDecode
from runner.mlx.mtp import HiddenStates
from runner.mlx.ranks.comm import Comm
from runner.mlx.sampling import (
    Drawn,
    DrawnRows,
    EngineRow,
    PendingStep,
    RowDraft,
    TokenSource,
    advance,
)
from runner.text import DeadEnd

WIDEST = 33
"""The most tokens of one row (columns) that a step with drafts computes."""
FULL_ROWS = 4
"""A microbatch with this many rows is full. When all microbatches in use are full, a new row goes
to the next one, because smaller microbatches gain nothing."""


def microbatch_for(lengths: Sequence[int]) -> int:
    """Return the index of the microbatch for a new row. `lengths` are the row counts of all
    microbatches. The row goes to the microbatch in use that has the fewest rows (the first of
    equals), or to the next one if all in use are full."""
    opened = max((at for at, length in enumerate(lengths) if length), default=0)
    if opened + 1 < len(lengths) and all(rows >= FULL_ROWS for rows in lengths[: opened + 1]):
        opened += 1
    return min(range(opened + 1), key=lambda at: lengths[at])


def record(into: list[DrawnRows], drawn: Drawn, rows: Sequence[tuple[int, EngineRow]]) -> None:
    """Append the drawn tokens of `rows` to `into`. Each entry of `rows` is an index in the arrays
    of `drawn`, and the row at that index."""
    for index, row in rows:
        if row.matcher is not None:
            row.unread = (drawn.tokens, index)
    listed = tuple((index, row.name, row.spec.logprobs or 0) for index, row in rows)
    into.append(DrawnRows(drawn, listed))


class Microbatch:
    """One decode batch, with the row in each of its slots."""

    def __init__(
        self,
        model: Any,
        shape: Shape,
        capabilities: Capabilities,
        source: TokenSource,
        comm: Comm,
        adapters: AdapterBank,
        hidden: HiddenStates,
    ) -> None:
        self._hidden = hidden
        self.batch = DecodeBatch(shape.codecs, holes=capabilities.slabs, packed=capabilities.packs)
        self._model = model
        self._source = source
        self._comm = comm
        self._adapters = adapters
        self._in_batch: dict[int, EngineRow] = {}
        self._last_tokens: mx.array | None = None
        """The tokens that the last step sampled, (slots,)."""

    def __len__(self) -> int:
        return len(self._in_batch)

    def caches_of(self, row: EngineRow, length: int) -> list[Any]:
        """Return copies of a row's caches, one per layer, unevaluated. They hold `length` tokens,
        or more if the model's KV can be cut. Raises ValueError if the batch has computed more
        tokens and cannot take them back."""
        if not self.batch.replay.trims:
            self._settle(row.computed_tokens - length)
        return self.batch.take(row.name)[0]

    def step(
        self, rows: Sequence[EngineRow], pending: PendingStep, compiled: CompiledDecode | None
    ) -> None:
        """Start one step for exactly these rows; `pending` gets the arrays of their new tokens. The
        tokens of the previous step are awaited only after this step's forward pass is built."""
        self._hold_exactly(rows)
        self.batch.open_step()
        slots, in_batch = self._slots(), list(self._in_batch.items())
        adapters = [row.spec.adapter if row else "" for row in slots]
        # A trace was made without adapters.
        out = compiled.logits(self.batch) if compiled is not None and not any(adapters) else None
        if out is None:
            inputs = self.batch.replay.before(self.batch.tokens)
            with self._adapters.applied(adapters):
                out = self._model(inputs, cache=self.batch.caches())[:, -1]
        if self._comm.size > 1 and self._last_tokens is not None:
            self._comm.await_tokens(self._last_tokens)
        hidden: list[mx.array] = []
        if self._hidden.head is not None:
            hidden = self._hidden.of_step(in_batch, self.batch.replay.lag)
        drawn = self._source.draw_again(slots, out, pending)
        self._comm.submit_or_hold([*drawn.arrays(), *hidden])
        self._last_tokens = drawn.tokens
        self.batch.close_step(drawn.tokens)
        record(pending.decoded, drawn, in_batch)

    def verify(
        self,
        rows: Sequence[EngineRow],
        drafts: Mapping[RowId, Sequence[TokenId]],
        pending: PendingStep,
    ) -> bool:
        """Start a step for exactly these rows that also computes their drafted tokens, in one
        forward pass. Drafts are cut at the first token that the row's grammar forbids, and to
        `WIDEST`. Shorter drafts are padded to the longest one. `accept` must be called before the
        next step, to keep only the KV of accepted tokens. Return False if every row failed; then no
        step was started."""
        drafted: dict[EngineRow, Sequence[TokenId]] = {}
        for row in rows:
            try:
                drafted[row] = row.permitted(drafts.get(row.name, ()))
            except DeadEnd as error:
                pending.failures.append(RowFailure(row.name, "internal", f"grammar: {error}"))
        if not drafted:
            return False
        self._hold_exactly(list(drafted))
        slots = self.batch.close_holes(at_once=len(drafted) <= self.batch.holes + 1)
        if slots is not None:
            self._source.write_back()
            self._reslot(slots)
        longest = min(max(map(len, drafted.values())), WIDEST - 1 - self.batch.replay.lag)
        guesses = np.zeros((len(self.batch), longest), np.int32)
        row_drafts: list[RowDraft] = []
        for slot, row in self._in_batch.items():
            tokens = drafted[row][:longest]
            guesses[slot, : len(tokens)] = tokens
            row_drafts.append(RowDraft(slot, row, tokens))
        inputs = open_draft_step(self.batch, mx.array(guesses))  # pyright: ignore[reportArgumentType]
        adapters = [row.spec.adapter if row else "" for row in self._slots()]
        with self._adapters.applied(adapters):
            logits = self._model(inputs, cache=self.batch.caches())[:, self.batch.replay.lag :]
        self._hidden.of_drafts(self._in_batch.items(), self.batch.replay.lag)
        drawn_rows = self._source.draw_drafted(row_drafts, logits, pending)
        for drawn in {id(rows.drawn): rows.drawn for rows in drawn_rows}.values():
            self._comm.submit(drawn.arrays())
        pending.decoded.extend(drawn_rows)
        return True

    def accept(self, made: Mapping[RowId, Sequence[TokenId]]) -> None:
        """Keep the KV of a verified draft up to the last accepted token of each row. `made` has the
        new tokens of each row. A row that has failed meanwhile has left the batch."""
        counts = [0] * len(self.batch)
        last = [0] * len(self.batch)
        for slot, row in self._in_batch.items():
            tokens = made[row.name]
            advance(row.draw, tokens)
            if row.matcher is not None:
                row.accepted.extend(tokens)
            counts[slot], last[slot] = len(tokens), tokens[-1]
        self._hidden.accept(made)
        if counts:
            self._last_tokens = mx.array(last, mx.int32)
            self.batch.close_draft(self._last_tokens, counts)

    def _settle(self, back: int = 0) -> None:
        """Compute the accepted tokens of a draft whose KV the batch lost, except the last `back`
        tokens. (Layers that cannot be cut lose the KV of a draft that was not accepted as a whole.)
        Raises ValueError if the batch has already computed some of the last `back` tokens and
        cannot take them back."""
        inputs = self.batch.replay.until(back)
        if inputs is None:
            return
        self.batch.open_step()
        adapters = [row.spec.adapter if row else "" for row in self._slots()]
        with self._adapters.applied(adapters):
            self._model(inputs, cache=self.batch.caches())
        self._hidden.discard()
        self.batch.replay.advance(inputs.shape[1])

    def write_back(self) -> None:
        """Write the sampling state of the batch back to its rows."""
        self._source.write_back()

    def leave(self, rows: Sequence[EngineRow]) -> None:
        """Remove rows from the batch. The caller has already set their `batched` to False."""
        self._source.write_back()
        self._reslot(self.batch.leave([row.name for row in rows]))

    def _slots(self) -> list[EngineRow | None]:
        """Return the row in each slot; None for a hole."""
        return [self._in_batch.get(slot) for slot in range(len(self.batch.rows))]

    def _hold_exactly(self, rows: Sequence[EngineRow]) -> None:
        """Make the batch consist of exactly these rows. Other rows leave the batch with a copy of
        their KV, and new rows join it."""
        wanted = set(rows)
        parked = [row for row in self._in_batch.values() if row not in wanted]
        joining = [row for row in rows if not row.batched]
        if parked or joining:
            self._source.write_back()
            if self._comm.size > 1:
                self._comm.settle()
            if not self.batch.replay.trims:
                self._settle()
        for row in parked:
            row.caches, row.token = self.batch.take(row.name)
            self._comm.wait_for([*evaluated(row.caches), row.token])
            row.batched = False
        if parked:
            self._reslot(self.batch.leave([row.name for row in parked]))
        for row in joining:
            self._join(row)
        if self.batch.holes:
            slots = self.batch.close_holes()
            if slots is not None:
                self._source.write_back()
                self._reslot(slots)

    def _join(self, row: EngineRow) -> None:
        assert row.token is not None
        length = row.draw.position - 1
        slot = self.batch.join(row.name, row.caches, length, row.token)
        self._in_batch[slot] = row
        row.caches, row.token, row.batched = [], None, True

    def _reslot(self, slots: list[int] | None) -> None:
        if slots is None:
            self._in_batch = {s: row for s, row in self._in_batch.items() if row.batched}
        else:
            self._in_batch = {
                new: self._in_batch[old]
                for new, old in enumerate(slots)
                if old in self._in_batch and self._in_batch[old].batched
            }
