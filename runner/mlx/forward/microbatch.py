# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: the rows of one decode batch and their slots.

An engine has one microbatch. A pipeline has one per stage, so that a stage computes one while the
next stage computes another: GPipe's micro-batches. The pipeline needs no flushes, because a
microbatch's next step waits only for its own tokens. The plans alone decide which microbatch a row
joins, so it is the same on every rank.
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
"""The most columns of a step of one row."""
FULL_ROWS = 4
"""When every open microbatch has this many rows, a new row opens the next one; smaller microbatches
gain nothing."""


def microbatch_for(lengths: Sequence[int]) -> int:
    """Return the index of the microbatch for a new row; `lengths` are the row counts of all
    microbatches. It is the open one with the fewest rows, or the next one if all are full; of
    equals, the first."""
    opened = max((at for at, length in enumerate(lengths) if length), default=0)
    if opened + 1 < len(lengths) and all(rows >= FULL_ROWS for rows in lengths[: opened + 1]):
        opened += 1
    return min(range(opened + 1), key=lambda at: lengths[at])


def record(into: list[DrawnRows], drawn: Drawn, rows: Sequence[tuple[int, EngineRow]]) -> None:
    """Append the drawn tokens to `into`, with their `rows`: pairs of an index in the arrays and the
    row at that index."""
    for index, row in rows:
        if row.matcher is not None:
            row.unread = (drawn.tokens, index)
    listed = tuple((index, row.name, row.spec.logprobs or 0) for index, row in rows)
    into.append(DrawnRows(drawn, listed))


class Microbatch:
    """One decode batch and the slots of its rows."""

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
        """The tokens of the last step, (slots,)."""

    def __len__(self) -> int:
        return len(self._in_batch)

    def caches_of(self, row: EngineRow, length: int) -> list[Any]:
        """Return copies of a row's caches, one per layer, unevaluated. They hold `length` tokens,
        or more if they can be cut. Raises ValueError if that is not possible."""
        if not self.batch.replay.trims:
            self._settle(row.computed_tokens - length)
        return self.batch.take(row.name)[0]

    def step(
        self, rows: Sequence[EngineRow], pending: PendingStep, compiled: CompiledDecode | None
    ) -> None:
        """Start one step for exactly these rows; `pending` gets the arrays of their new tokens. The
        tokens of the previous step are awaited only after this step's forward is built."""
        self._hold_exactly(rows)
        self.batch.open_step()
        slots = self._slots()
        with self._adapters.applied([row.spec.adapter if row else "" for row in slots]) as adapted:
            # A trace knows no adapters: it is of the model alone.
            out = compiled.logits(self.batch) if compiled is not None and not adapted else None
            if out is None:
                inputs = self.batch.replay.before(self.batch.tokens)
                out = self._model(inputs, cache=self.batch.caches())[:, -1]
        if self._last_tokens is not None:
            self._comm.await_tokens(self._last_tokens)
        in_batch = list(self._in_batch.items())
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
        """Start a step of exactly these rows that also computes their drafted tokens, in one
        forward. Rows with shorter drafts, or none, are padded to the same number of columns. The
        batch's cells of these columns are valid only after `accept`, which must precede the next
        step. First a draft is cut where the row's grammar forbids a token, and where the step would
        be wider than `WIDEST`. Return False if every row has failed; then there is no step to
        accept."""
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
        """Keep the columns of verified drafts up to each row's last valid token; `made` are the new
        tokens of the rows. A row that failed meanwhile has left the batch."""
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
        """Compute the tokens that the batch lacks because of a draft that was not accepted as a
        whole, except the last `back` ones. Raises ValueError if the batch has computed more."""
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
        """Write the rows' sampling state back to them."""
        self._source.write_back()

    def leave(self, rows: Sequence[EngineRow]) -> None:
        """Remove rows from the batch; their `batched` is already false."""
        self._source.write_back()
        self._reslot(self.batch.leave([row.name for row in rows]))

    def _slots(self) -> list[EngineRow | None]:
        """Return the row in each slot; None for a hole."""
        return [self._in_batch.get(slot) for slot in range(len(self.batch.rows))]

    def _hold_exactly(self, rows: Sequence[EngineRow]) -> None:
        """Make the batch consist of exactly these rows: other rows leave it and keep their KV, new
        rows join."""
        wanted = set(rows)
        parked = [row for row in self._in_batch.values() if row not in wanted]
        joining = [row for row in rows if not row.batched]
        if parked or joining:
            self._source.write_back()
            self._comm.settle()
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
