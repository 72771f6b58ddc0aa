# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: the rows that decode together, and how rows join and leave.

The batch lives over many steps. Its layers are slabs if the model's KV is ordinary, else mlx-lm's
own batch caches (rotating windows, recurrent states). With slabs alone, a leaving row leaves a
hole; otherwise the batch is compacted at once. Slots are positions in a step's arrays; `rows[slot]`
is the row in a slot, or None for a hole.

Slabs can take back a draft: they do not move on. Other layers cannot, so drafts are for one row
there. Their states are saved before its step. If the model does not accept the whole draft, the
states are restored and no layer moves on. The accepted tokens are then computed again, at the front
of the next forward.
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
"""Up to this many rows, slabs have no spare slots, because a trace of a small batch is for its
exact number of rows."""
ROOM_STEP = 64


def slots_for(rows: int) -> int:
    """Return how many slots new slabs for this many rows get."""
    return rows if rows <= SNUG_ROWS else rows + rows % 2


class DecodeBatch:
    """The rows that decode together: their KV, and the next input token of each."""

    def __init__(
        self, codecs: Sequence[Codec | None], *, holes: bool = True, packed: bool = False
    ) -> None:
        """`codecs[i]` stores the keys and values of layer i; None: the layer has no ordinary KV.
        `holes` False: compact the batch immediately, even if all layers of this rank are ordinary,
        because another rank has layers that are not. `packed`: attention reads the stored KV
        without decoding it."""
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
        """Return the bytes of all layers, spare room included."""
        return self.replay.nbytes + sum(layer.nbytes for layer in self.layers)

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
        self._make_room(length)
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
        """Remove the holes of the batch if they have cost more than removing them would, or
        `at_once`. Call this once per step. Return None if nothing has moved; else, for each new
        slot, the old slot of its row."""
        self._wasted = self._wasted + self.holes if self.holes else 0
        least = 1 if at_once else max(8, len(self.rows) - self.holes)
        return None if self._wasted < least else self._close_up()

    def ease(self) -> None:
        """Drop spare slots once: at the next step, or when rows that leave make slots spare. Rows
        keep their slots."""
        self._eases = True

    def open_step(self, columns: int = 1) -> None:
        """Make sure that every row has this many free columns beyond its lag, and compute the
        offsets and masks of this step."""
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
        """Return the stored arrays of every layer, for the caller to write into. The batch does not
        refer to them until `return_slabs`, so they can be written in place."""
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
        """Record that the forward has written this many valid columns. `sampled`, (slots,) int32,
        are the next input tokens."""
        if not self.replay.trims:
            columns += self.replay.lag
            self.replay.clear()
        self.shape.close_step(columns)
        self.tokens = sampled

    def close_draft(self, last: mx.array, counts: Sequence[int]) -> None:
        """Record that the row in slot i keeps the first `counts[i]` columns that the forward has
        written beyond its lag. `last`, (slots,) int32, are the next input tokens."""
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

    def _make_room(self, length: int) -> None:
        if len(self.rows) > self.shape.slots or length > self.shape.stop:
            self._relay(None, length, len(self.rows))

    def _relay(self, kept_slots: Sequence[int] | None, length: int, slots: int) -> None:
        """Copy the KV into new slabs that fit `slots` rows of at least `length` tokens, with spare
        room. `kept_slots` are the slots to copy, in their new order (None: all)."""
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
        self.replay.clear()
        for layer in self.layers:
            layer.clear()
        self.shape.begins = []
        self.shape.gaps = {}
        self.shape.stop = self.shape.room = self.shape.slots = 0


def open_draft_step(batch: DecodeBatch, guessed: mx.array) -> mx.array:
    """Prepare a step that also computes `guessed` tokens, (slots, guesses). Return all tokens to
    compute, (slots, lag + 1 + guesses)."""
    inputs = mx.concatenate([batch.replay.before(batch.tokens), guessed], axis=1)
    batch.open_step(1 + guessed.shape[1])
    batch.replay.save(inputs)
    return inputs
