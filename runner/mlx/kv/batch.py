# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: the KV of the rows that decode together, and how rows join and leave this batch.

The batch lives over many steps. A slot is the index of a row in the arrays of a step. A hole is a
slot without a row; `rows[slot]` is then None. A layer with ordinary (growing) KV is a slab. Other
layers use mlx-lm's own batch caches (rotating windows, recurrent states). If all layers are slabs,
a row that leaves the batch leaves a hole. Otherwise the batch is compacted when a row leaves.

When the model rejects guesses of a draft, their KV must be removed. In a slab, the next step
overwrites it, or a mask hides it. Other layers cannot remove tokens. A model with such layers
verifies a draft only while the batch has one row. The states of these layers are saved before the
step. If the model does not accept the whole draft, the states are restored, and the whole step
counts as not computed. The next forward pass computes the accepted tokens (the lag) again, before
its own token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from runner.engine import RowId
from runner.mlx.kv.codec import Codec, Parts
from runner.mlx.kv.kv_slab import SLACK_TOKENS, SlabKV, SlabShape
from runner.mlx.kv.merged import MergedKV, Replay
from runner.mlx.kv.row_kv import RowKV

SNUG_ROWS = 8
"""Up to this many rows, slabs have no spare slots, because a compiled trace of a small batch works
only for its exact number of rows."""
ROOM_STEP = 64


def slots_for(rows: int) -> int:
    """Return the number of slots in new slabs for this many rows."""
    return rows if rows <= SNUG_ROWS else rows + rows % 2


class DecodeBatch:
    """The rows that decode together: their KV, and the next input token of each."""

    def __init__(
        self, codecs: Sequence[Codec | None], *, holes: bool = True, packed: bool = False
    ) -> None:
        """`codecs[i]` stores the keys and values of layer i; None: the layer has no ordinary KV.
        `holes` False: compact the batch whenever a row leaves, even if all layers of this rank are
        slabs, because another rank has other layers. `packed`: attention reads the stored
        (quantised) KV without decoding it."""
        self.shape = SlabShape()
        self.layers: list[SlabKV | MergedKV] = [
            MergedKV()
            if codec is None
            else SlabKV(self.shape, codec, codec.packed() if packed else codec)
            for codec in codecs
        ]
        self.rows: list[RowId | None] = []
        self.tokens: mx.array = mx.zeros((0,), mx.int32)
        self._keeps_holes = holes and None not in codecs
        merged = [layer for layer in self.layers if isinstance(layer, MergedKV)]
        self.replay = Replay(merged, self.shape)
        self._wasted = 0
        self._eases = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def holes(self) -> int:
        """Return the number of empty slots."""
        return self.rows.count(None)

    def slot_of(self, row: RowId) -> int:
        """Return a row's slot. Raises ValueError if it is not in the batch."""
        return self.rows.index(row)

    def caches(self) -> list[Any]:
        """Return the caches for the model's call, one per layer."""
        return [layer if isinstance(layer, SlabKV) else layer.cache for layer in self.layers]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all layers, unused room included."""
        saved_bytes = 0 if self.replay.trims else self.replay.nbytes
        return saved_bytes + sum(layer.nbytes for layer in self.layers)

    def join(self, row: RowId, caches: Sequence[Any], length: int, token: mx.array) -> int:
        """Add a prefilled row whose next input is `token` (shape (1,)); return its slot.

        `caches` are the row's own, one per layer, holding `length` tokens.
        """
        if self.holes:
            slot = self.rows.index(None)
            self.rows[slot] = row
        else:
            slot = len(self.rows)
            self.rows.append(row)
            self.shape.begins.append(SlabShape.HOLE)
        if len(self.rows) > self.shape.slots or length > self.shape.stop:
            self._relay(None, length, len(self.rows))
        for layer, own in zip(self.layers, caches, strict=True):
            if isinstance(layer, SlabKV):
                layer.put(slot, own)
            else:
                layer.put(own)
        self.shape.begins[slot] = self.shape.stop - length
        if slot == len(self.tokens):
            self.tokens = mx.concatenate([self.tokens, token.astype(mx.int32)])
        else:
            before, after = self.tokens[:slot], self.tokens[slot + 1 :]
            self.tokens = mx.concatenate([before, token.astype(mx.int32), after])
        return slot

    def take(self, row: RowId) -> tuple[list[Any], mx.array]:
        """Return copies of a row's caches, one per layer, and its next input token, (1,)."""
        slot = self.slot_of(row)
        caches: list[Any] = []
        for layer in self.layers:
            if isinstance(layer, SlabKV):
                caches.append(RowKV.holding(layer.take(slot), layer.codec))
            else:
                caches.append(layer.take(slot))
        return caches, self.tokens[slot : slot + 1]

    def leave(self, gone: Sequence[RowId]) -> list[int] | None:
        """Drop rows. Return None if no slot has moved. Otherwise return, for each new slot, the old
        slot of its row; the caller moves all other data per slot likewise."""
        for row in gone:
            slot = self.slot_of(row)
            self.rows[slot] = None
            self.shape.clear_slot(slot)
        if self.holes == len(self.rows):
            self._clear()
            return []
        if not self._keeps_holes and self.holes:
            return self._close_up()
        if self.rows[-1] is None:
            while self.rows[-1] is None:
                self.rows.pop()
                self.shape.begins.pop()
            self.tokens = self.tokens[: len(self.rows)]
            return list(range(len(self.rows)))
        return None

    def close_holes(self, *, at_once: bool = False) -> list[int] | None:
        """Compact the batch if computing its holes has cost more than compacting would, or if
        `at_once`. Call this once per step. Return None if no slot has moved. Otherwise return, for
        each new slot, the old slot of its row."""
        self._wasted = self._wasted + self.holes if self.holes else 0
        least = 1 if at_once else max(8, len(self.rows) - self.holes)
        return None if self._wasted < least else self._close_up()

    def ease(self) -> None:
        """Shrink the slabs once to the slots that are in use, at the next step that finds spare
        slots. Rows keep their slots."""
        self._eases = True

    def open_step(self, columns: int = 1) -> None:
        """Make sure that the slabs have room for the lag and this many new columns (tokens of each
        row), and compute the offsets and masks of this step."""
        if not self.replay.trims:
            self.replay.forget()
            columns += self.replay.lag
        count = len(self.rows)
        gives = self.shape.slots > slots_for(count) and (self._eases or count <= SNUG_ROWS)
        if self.shape.stop + columns > self.shape.room or gives:
            self._eases = self._eases and not gives
            self._relay(None, 0, count)
        self.shape.open_step()

    def lend_slabs(self) -> list[Parts]:
        """Return the stored arrays of every layer, for the caller to write into. Until
        `return_slabs`, the batch keeps no reference to them, so MLX can write them in place."""
        lent: list[Parts] = []
        for layer in self.layers:
            if not isinstance(layer, SlabKV) or not layer.parts:
                raise ValueError("only a batch whose layers are all slabs can lend slabs")
            lent.append(layer.parts)
            layer.parts = ()
        return lent

    def return_slabs(self, slabs: Sequence[Parts]) -> None:
        """Put the slabs that `lend_slabs` returned back into the layers, in the same order."""
        for layer, parts in zip(self.layers, slabs, strict=True):
            if isinstance(layer, SlabKV):
                layer.parts = tuple(parts)

    def close_step(self, sampled: mx.array, columns: int = 1) -> None:
        """Record that the forward pass has written this many valid columns (and the lag, if any).
        `sampled`, (slots,) int32, are the next input tokens."""
        if not self.replay.trims:
            columns += self.replay.lag
            self.replay.clear()
        self.shape.close_step(columns)
        self.tokens = sampled

    def close_draft(self, last: mx.array, counts: Sequence[int]) -> None:
        """Record how much of a verified draft stays: of the columns that the forward pass has
        written beyond the lag, the row in slot i keeps the first `counts[i]`. `last`, (slots,)
        int32, are the next input tokens."""
        self.tokens = last
        if self.replay.trims:
            self.shape.close_draft(counts)
        else:
            self.shape.close_step(self.replay.close(counts[0]))

    def _close_up(self) -> list[int]:
        occupied = [slot for slot, row in enumerate(self.rows) if row is not None]
        self._wasted = 0
        self.rows = [self.rows[slot] for slot in occupied]
        self.shape.keep(occupied)
        self.tokens = self.tokens[mx.array(occupied)]
        self._relay(occupied, 0, len(occupied))
        for layer in self.layers:
            if isinstance(layer, MergedKV):
                layer.keep(occupied)
        return occupied

    def _relay(self, kept_slots: Sequence[int] | None, length: int, slots: int) -> None:
        """Copy the KV into new slabs for `slots` rows, with room for `length` tokens or the longest
        row, and for further steps. `kept_slots` are the slots to copy, in their new order (None:
        all)."""
        shape = self.shape
        width = shape.longest
        wide = max(width, length)
        source = slice(shape.stop - width, shape.stop)
        target = slice(wide - width, wide)
        room = wide + max(SLACK_TOKENS, wide // 16)
        shape.room = -(-room // ROOM_STEP) * ROOM_STEP
        shape.slots = slots_for(slots)
        slabs = [layer for layer in self.layers if isinstance(layer, SlabKV)]
        if shape.gaps:
            rows = shape.pack()
            for layer in slabs:
                layer.pack(kept_slots or range(len(rows)), rows, wide)
        else:
            for layer in slabs:
                layer.move(kept_slots, source, target)
        moved = wide - shape.stop
        shape.begins = [b if b == SlabShape.HOLE else b + moved for b in shape.begins]
        shape.stop = wide

    def _clear(self) -> None:
        self.rows = []
        self.tokens = mx.zeros((0,), mx.int32)
        self._wasted = 0
        if not self.replay.trims:
            self.replay.clear()
        for layer in self.layers:
            layer.clear()
        self.shape.begins = []
        self.shape.gaps = {}
        self.shape.stop = self.shape.room = self.shape.slots = 0


def open_draft_step(batch: DecodeBatch, guessed: mx.array) -> mx.array:
    """Prepare the batch for a step that also computes `guessed` tokens, (slots, guesses). Return
    all input tokens of the step, (slots, lag + 1 + guesses)."""
    inputs = mx.concatenate([batch.replay.before(batch.tokens), guessed], axis=1)
    batch.open_step(1 + guessed.shape[1])
    batch.replay.save(inputs)
    return inputs
