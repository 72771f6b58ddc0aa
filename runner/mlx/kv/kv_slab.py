"""Talks to MLX: the KV of all decoding rows, one slab per attention layer.

A slab has one array for each part of its codec, of shape (slots, heads, room, width), where `room`
is the capacity in tokens. All rows end at the same position, `stop`, so a step writes one column
for all rows in place. Row i begins at `begins[i]`; attention sees the window from the earliest
beginning to `stop`. A leaving row leaves a hole. The hole keeps its slot until another row takes
it, or until compacting costs less than the row-steps wasted on holes. The window slides through the
room and is moved back at the end, with room for at least `SLACK_TOKENS` more steps. So a join or
leave never copies the KV of other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from runner.mlx.kv.codec import FULL_WIDTH, Codec, Parts
from runner.mlx.kv.row_kv import LayerKV, RowKV, causal_mask

SLACK_TOKENS = 64


class SlabShape:
    """The positions of the rows: shared by the slabs of all layers, kept on the host.

    `begins[i] == HOLE` marks a slot without a row. `offset` and masks are made once per step.
    """

    HOLE = -1

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.stop = 0
        self.room = 0
        self.slots = 0
        self.offset: int | mx.array = 0
        self.start = 0
        self._mask: mx.array | None = None
        self._masks: dict[int, mx.array] = {}

    @property
    def width(self) -> int:
        """Return the number of columns (tokens) from the earliest beginning of a row to `stop`."""
        return self.stop - min((b for b in self.begins if b != self.HOLE), default=self.stop)

    def open_step(self) -> None:
        """Compute the offsets and masks for the next forward, which writes one column, or several
        for a draft; the slabs must have room for them."""
        begins = [self.stop if b == self.HOLE else b for b in self.begins]
        self.start = min(begins)
        self._masks = {}
        if min(begins) == max(begins):
            self.offset = self.stop - self.start
            self._mask = None
            return
        self.offset = mx.array([self.stop - b for b in begins])
        columns = mx.arange(self.stop + 1 - self.start)
        padding = mx.array([b - self.start for b in begins])
        self._mask = columns >= padding[:, None, None, None]

    def close_step(self, columns: int = 1) -> None:
        """Record that the forward pass has written this many valid columns. Columns of rejected
        drafts come after them: no row attends to these, and the next step overwrites them."""
        self.stop += columns

    def wide_mask(self, count: int, window: int | None) -> mx.array | str:
        """Return the attention mask for `count` new columns, or mlx-lm's name of a standard mask if
        that suffices. All rows must begin at the same column."""
        if self._mask is not None:
            raise ValueError("several columns require rows that begin at the same column")
        past = self.stop - self.start
        return "causal" if window is None else causal_mask(count, past, window)

    def mask(self, window: int | None) -> mx.array | None:
        """Return the attention mask, (slots, 1, 1, columns), for the columns from `start` to `stop`
        inclusive; None if every row attends to all of them. `window`: the model's sliding window in
        tokens; None if it has none."""
        seen = self.stop + 1 - self.start
        if window is None or window >= seen:
            return self._mask
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
            raise ValueError("a slab without rows")
        used, stop = len(shape.begins), shape.stop + keys.shape[2]
        for part, new in zip(self.parts, self.codec.encode(keys, values), strict=True):
            part[:used, :, shape.stop : stop] = new
        seen = slice(shape.start, stop)
        return self.reader.fetch(tuple(part[:used, :, seen] for part in self.parts))

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return attention's mask for `N` new columns (`SlabShape.mask` or `wide_mask`)."""
        if N == 1:
            return self.shape.mask(window_size)
        if return_array and window_size is None:
            return causal_mask(N, self.shape.stop - self.shape.start, None)
        return self.shape.wide_mask(N, window_size)

    def size(self) -> int:
        """Return the number of columns (tokens) in use."""
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

    def take(self, slot: int, length: int | None = None) -> Parts:
        """Return copies of a row's stored parts, for its first `length` tokens (default: all)."""
        if not self.parts:
            raise ValueError("a slab without rows")
        begin = self.shape.begins[slot]
        end = self.shape.stop if length is None else begin + length
        return tuple(mx.contiguous(part[slot : slot + 1, :, begin:end]) for part in self.parts)

    def move(self, slots: Sequence[int] | None, source: slice, target: slice) -> None:
        """Copy the KV into new arrays of the shape's present size, from the columns `source` to the
        columns `target`. `slots` are the slots to keep, in their new order (None: all)."""
        self.parts = tuple(self._moved(part, slots, source, target) for part in self.parts)

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
