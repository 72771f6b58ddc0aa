"""Talks to MLX: the KV of all decoding rows, one slab per attention layer.

A slab has one array for each part of its codec, of shape (slots, heads, room, width). `room` is the
capacity in columns; a column is one token position of all rows. All rows end at the same column,
`stop`, so a step writes one column for all rows in place. The row in slot i begins at column
`begins[i]`. Attention reads the window from the earliest beginning to `stop`. A row that leaves the
batch leaves a hole: its slot stays empty until another row takes it or the batch is compacted. The
window moves right with each step. At the end of the room it is copied to new arrays, with room for
at least `SLACK_TOKENS` more columns. So most joins and leaves copy no KV of other rows.

If a step verifies drafts, each row accepts a different number of columns. `stop` advances by the
largest of these numbers. In every other row, the columns that it did not accept become a gap: masks
hide the gap, and copies of the row leave it out. The next copy of the window removes all gaps, so
they never take more room than the slack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from runner.mlx.kv.codec import FULL_WIDTH, Codec, Parts
from runner.mlx.kv.row_kv import LayerKV, RowKV, causal_mask

SLACK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class PackedRow:
    """The columns with the tokens of a row. `whole` is the range up to the first gap; `rest`,
    (columns,), are the columns after it, or None without a gap."""

    whole: range
    rest: mx.array | None


class SlabShape:
    """The positions of all rows in the slabs. The slabs of all layers share it; it is host memory.

    `begins[i]` is the first column of the row in slot i; `HOLE` marks a slot without a row.
    `gaps[i]` are the ranges of columns between the first and the last token of that row that have
    no valid token, ascending. Rows without gaps have no entry. `windowed`: a layer of the model has
    requested the mask of a sliding window. `offset` and the masks are made once per step.
    """

    HOLE = -1

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.gaps: dict[int, list[range]] = {}
        self.stop = 0
        self.room = 0
        self.slots = 0
        self.offset: int | mx.array = 0
        self.start = 0
        self.windowed = False
        self._mask: mx.array | None = None
        self._masks: dict[int, mx.array] = {}
        self._wide: tuple[int, mx.array] | None = None

    @property
    def width(self) -> int:
        """Return the number of columns from the earliest beginning of a row to `stop`."""
        return self.stop - min((b for b in self.begins if b != self.HOLE), default=self.stop)

    @property
    def longest(self) -> int:
        """Return the number of tokens of the longest row."""
        return max(self.lengths(), default=0) if self.gaps else self.width

    def lengths(self) -> list[int]:
        """Return the number of tokens of the row in each slot; 0 for a hole."""
        return [
            0 if begin == self.HOLE else self.stop - begin - sum(map(len, self.gaps.get(slot, ())))
            for slot, begin in enumerate(self.begins)
        ]

    def columns_of(self, slot: int) -> NDArray[np.int64]:
        """Return the columns that hold the tokens of a row, ascending."""
        return np.flatnonzero(self.valid(0, self.stop)[slot])

    def valid(self, first: int, last: int) -> NDArray[np.bool_]:
        """Return, as (slots, columns), which columns from `first` to before `last` each row may
        read: up to `stop` the columns of its tokens, and beyond `stop` all columns."""
        begins = [self.stop if begin == self.HOLE else begin for begin in self.begins]
        valid = np.arange(first, last) >= np.array(begins)[:, None]
        for slot, gaps in self.gaps.items():
            for gap in gaps:
                valid[slot, max(gap.start - first, 0) : max(gap.stop - first, 0)] = False
        return valid

    def open_step(self) -> None:
        """Compute the offsets and masks for the next forward pass. It writes one column, or several
        for a draft; the slabs must have room for them."""
        begins = [self.stop if b == self.HOLE else b for b in self.begins]
        self.start = min(begins)
        self._masks = {}
        self._wide = None
        if self.gaps:
            self.offset = mx.array(self.lengths())
            seen = self.valid(self.start, self.stop + 1)[:, None, None]
            self._mask = mx.array(seen)  # pyright: ignore[reportArgumentType]
            return
        if min(begins) == max(begins):
            self.offset = self.stop - self.start
            self._mask = None
            return
        self.offset = mx.array([self.stop - b for b in begins])
        columns = mx.arange(self.stop + 1 - self.start)
        padding = mx.array([b - self.start for b in begins])
        self._mask = columns >= padding[:, None, None, None]

    def close_step(self, columns: int = 1) -> None:
        """Record that the forward pass has written this many valid columns in every row. Columns
        after these are rejected guesses: no row reads them, and the next step overwrites them."""
        self.stop += columns

    def close_draft(self, counts: Sequence[int]) -> None:
        """Record how much of a draft each row keeps: of the columns that the forward pass has
        written, the row in slot i keeps the first `counts[i]`."""
        stop = self.stop + max(counts)
        for slot, (begin, count) in enumerate(zip(self.begins, counts, strict=True)):
            if begin != self.HOLE and self.stop + count < stop:
                self.gaps.setdefault(slot, []).append(range(self.stop + count, stop))
        self.stop = stop

    def pack(self) -> list[PackedRow]:
        """Forget all gaps, and move the beginnings of the rows accordingly. Return for each slot
        the columns that the caller must copy without gaps, so that the row still ends at `stop`."""
        rows: list[PackedRow] = []
        for slot, length in enumerate(self.lengths()):
            begin, gaps = self.begins[slot], self.gaps.get(slot)
            if not length:
                rows.append(PackedRow(range(0), None))
            elif gaps is None:
                rows.append(PackedRow(range(begin, self.stop), None))
            else:
                first = gaps[0].start
                rest = self.columns_of(slot)[first - begin :]
                columns = mx.array(rest)  # pyright: ignore[reportArgumentType]
                rows.append(PackedRow(range(begin, first), columns))
                self.begins[slot] = self.stop - length
        self.gaps = {}
        return rows

    def clear_slot(self, slot: int) -> None:
        """Make a slot a hole."""
        self.begins[slot] = self.HOLE
        self.gaps.pop(slot, None)

    def keep(self, slots: Sequence[int]) -> None:
        """Drop all slots except `slots`, and number these from 0 in the given order."""
        self.begins = [self.begins[slot] for slot in slots]
        self.gaps = {new: self.gaps[old] for new, old in enumerate(slots) if old in self.gaps}

    def wide_mask(self, count: int, window: int | None) -> mx.array | str:
        """Return the attention mask for `count` new columns. It is (slots, 1, count, columns), or
        (count, columns) if all rows have the same mask. If a standard mask is enough, it is
        mlx-lm's name of that mask. `window` is the model's sliding window; with one, all rows must
        begin at the same column."""
        past = self.stop - self.start
        if window is not None:
            self.windowed = True
            if self._mask is not None:
                raise ValueError("a draft in a sliding window requires rows of equal length")
            return causal_mask(count, past, window)
        if self._mask is None:
            return "causal"
        if self._wide is None or self._wide[0] != count:
            valid = self.valid(self.start, self.stop)
            seen = np.empty((len(valid), 1, count, past + count), np.bool_)
            seen[..., :past] = valid[:, None, None]
            seen[..., past:] = np.tri(count, dtype=np.bool_)
            self._wide = count, mx.array(seen)  # pyright: ignore[reportArgumentType]
        return self._wide[1]

    def mask(self, window: int | None) -> mx.array | None:
        """Return the attention mask, (slots, 1, 1, columns), for the columns from `start` to `stop`
        inclusive; None if every row attends to all of them. `window`: the model's sliding window in
        tokens; None if it has none."""
        seen = self.stop + 1 - self.start
        if window is None or window >= seen:
            self.windowed = self.windowed or window is not None
            return self._mask
        self.windowed = True
        if self.gaps:
            raise ValueError("a sliding window requires rows without gaps")
        if window not in self._masks:
            recent = (mx.arange(seen) >= seen - window)[None, None, None]
            self._masks[window] = recent if self._mask is None else self._mask & recent
        return self._masks[window]


class SlabKV(LayerKV):
    """The KV of one attention layer for the decode batch; the model uses it as its cache."""

    def __init__(
        self, shape: SlabShape, codec: Codec = FULL_WIDTH, reader: Codec | None = None
    ) -> None:
        """`reader` is the codec with which attention reads the KV that `codec` stored (default:
        `codec` itself)."""
        super().__init__(codec)
        self.shape = shape
        self.reader = reader or codec
        self.reader.mark(self)

    @property
    def offset(self) -> int | mx.array:
        """Return the number of tokens before each row's next one: an int if it is the same for all
        rows, else (slots,) int32."""
        return self.shape.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write n columns of keys and values, (slots, heads, n, width), in place; n is 1 without a
        draft. Return the keys and values of all columns in use, including these: (slots, heads,
        columns, width)."""
        shape = self.shape
        if not self.parts:
            raise ValueError("the slab has no rows yet")
        used, stop = len(shape.begins), shape.stop + keys.shape[2]
        for part, new in zip(self.parts, self.codec.encode(keys, values), strict=True):
            part[:used, :, shape.stop : stop] = new
        seen = slice(shape.start, stop)
        return self.reader.fetch(tuple(part[:used, :, seen] for part in self.parts))

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the attention mask for `N` new columns (`SlabShape.mask` or `wide_mask`)."""
        if N == 1:
            return self.shape.mask(window_size)
        mask = self.shape.wide_mask(N, window_size)
        if return_array and isinstance(mask, str):
            return causal_mask(N, self.shape.stop - self.shape.start, None)
        return mask

    def size(self) -> int:
        """Return the number of columns in use."""
        return self.shape.width

    # What the batch calls.

    def put(self, slot: int, row: RowKV) -> None:
        """Write a row's KV into a slot so that it ends at `stop`. The shape must have room."""
        past = row.past()
        if not self.parts:
            self.parts = tuple(self._fresh(part) for part in past)
        there = slice(self.shape.stop - row.offset, self.shape.stop)
        for part, own in zip(self.parts, past, strict=True):
            part[slot : slot + 1, :, there] = own

    def take(self, slot: int) -> Parts:
        """Return copies of a row's stored parts, without gaps."""
        if not self.parts:
            raise ValueError("the slab has no rows yet")
        if slot in self.shape.gaps:
            columns = mx.array(self.shape.columns_of(slot))  # pyright: ignore[reportArgumentType]
            return tuple(mx.take(part[slot : slot + 1], columns, axis=2) for part in self.parts)
        past = slice(self.shape.begins[slot], self.shape.stop)
        return tuple(mx.contiguous(part[slot : slot + 1, :, past]) for part in self.parts)

    def move(self, slots: Sequence[int] | None, source: slice, target: slice) -> None:
        """Copy the KV into new arrays of the size in `shape`, from the columns `source` to the
        columns `target`. `slots` are the slots to keep, in their new order (None: all)."""
        self.parts = tuple(self._moved(part, slots, source, target) for part in self.parts)

    def pack(self, slots: Sequence[int], rows: Sequence[PackedRow], end: int) -> None:
        """Copy the KV of these slots without gaps into new arrays of the size in `shape`. Every row
        then ends before column `end`."""
        self.parts = tuple(self._packed(part, slots, rows, end) for part in self.parts)

    def clear(self) -> None:
        self.parts = ()

    def _fresh(self, like: mx.array) -> mx.array:
        _, heads, _, width = like.shape
        return mx.zeros((self.shape.slots, heads, self.shape.room, width), like.dtype)

    def _moved(
        self, old: mx.array, slots: Sequence[int] | None, source: slice, target: slice
    ) -> mx.array:
        past = old[:, :, source]
        if slots is not None:
            past = past[mx.array(list(slots))]
        count = min(past.shape[0], self.shape.slots)
        new = self._fresh(old)
        new[:count, :, target] = past[:count]
        return new

    def _packed(
        self, old: mx.array, slots: Sequence[int], rows: Sequence[PackedRow], end: int
    ) -> mx.array:
        new = self._fresh(old)
        for at, (slot, row) in enumerate(zip(slots, rows, strict=True)):
            whole, rest = row.whole, row.rest
            if not whole:
                continue  # this slot is a hole, or a row is about to join it
            own = old[slot : slot + 1]
            middle = end
            if rest is not None:
                middle -= rest.shape[0]
                new[at : at + 1, :, middle:end] = mx.take(own, rest, axis=2)
            first = middle - len(whole)
            new[at : at + 1, :, first:middle] = own[:, :, whole.start : whole.stop]
        return new
