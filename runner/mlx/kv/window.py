# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `put_along_axis` partly untyped)
"""Talks to MLX: KV that keeps only a row's first tokens (attention sinks) and its last tokens (a
window).

The token at position p attends to every earlier position that is one of the first `sinks`, and to
the last `tokens` positions up to p. Chunk sizes do not change this. Positions count from the start
of the row, because keys are stored after rotary embedding. A place is an index in the stored
arrays. A token is stored in the place of its position. When all places are taken, it replaces the
oldest token that is not a sink; attention does not depend on the order of places. So the rows of a
batch write to different places, and nothing moves when rows join or leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from runner.mlx.kv.codec import Parts
from runner.mlx.kv.row_kv import LayerKV

GROWTH_TOKENS = 64


@dataclass(frozen=True, slots=True)
class SinkWindow:
    """Which tokens of a row are kept: the first `sinks` and the last `tokens` tokens."""

    sinks: int
    tokens: int

    @property
    def places(self) -> int:
        """Return the maximum number of kept tokens."""
        return self.sinks + self.tokens

    def place_of(self, position: int) -> int:
        """Return the place (index in the stored arrays) of the token at `position`."""
        if position < self.places:
            return position
        return self.sinks + (position - self.sinks) % self.tokens

    def position_in(self, place: mx.array, length: int | mx.array) -> mx.array:
        """Return the position of the token in each place, for a row of `length` tokens. `length`
        may be an array with one length per row. For an empty place, return `length` or more."""
        last = length - 1
        behind = (last - place) % self.tokens
        return mx.where((place < self.sinks) | (place > last), place, last - behind)

    def sees(
        self, these: mx.array, those: mx.array, length: int | mx.array, narrower: int | None
    ) -> mx.array:
        """Return whether each position in `these` attends to each position in `those`, in a row of
        `length` tokens. `narrower` is the model's own sliding window, or None if it has none."""
        seen = (those < length) & (those <= these)
        seen = seen & ((those < self.sinks) | (these - those < self.tokens))
        return seen if narrower is None else seen & (these - those < narrower)


class WindowKV(LayerKV):
    """The KV of one attention layer for one row; the model uses it as its cache."""

    def __init__(self, window: SinkWindow) -> None:
        super().__init__()
        self.window = window
        self.offset = 0

    @classmethod
    def merge(cls, rows: Sequence[WindowKV]) -> WindowBatchKV:
        return WindowBatchKV(rows)

    def past(self) -> Parts:
        """Return the kept parts, each (1, heads, places taken, width)."""
        return tuple(part[:, :, : self.size()] for part in self.parts)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the keys and values of n tokens, (1, heads, n, width). Return all keys and values
        to which at least one of the n tokens attends."""
        count = keys.shape[2]
        if count == 1:
            self._write((keys, values))
            past = self.past()
            return past[0], past[1]
        new: Parts = (keys, values)
        if self.parts:
            new = tuple(
                mx.concatenate(list(both), axis=2) for both in zip(self.past(), new, strict=True)
            )
        self.parts = self._remaining(new, count)
        self.offset += count
        return new[0], new[1]

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the attention mask for the next `N` tokens, or mlx-lm's name of a standard mask if
        that suffices."""
        if window_size is None and N == 1:
            return None
        stop = self.offset + N
        if window_size is None and not return_array and stop <= self.window.places:
            return "causal"
        these, here = mx.arange(self.offset, stop), mx.arange(self.size())
        if N == 1:
            here = mx.arange(min(stop, self.window.places))
            those = self.window.position_in(here, stop)
        else:
            those = mx.concatenate([self.window.position_in(here, self.offset), these])
        return self.window.sees(these[:, None], those[None], stop, window_size)

    def size(self) -> int:
        """Return the number of kept tokens."""
        return min(self.offset, self.window.places)

    def _write(self, new: Parts) -> None:
        """Write one token into the place of its position, over the token that was there."""
        place = self.window.place_of(self.offset)
        if not self.parts or place >= self.parts[0].shape[2]:
            room = min(place + GROWTH_TOKENS, self.window.places)
            past = self.past() or tuple(part[:, :, :0] for part in new)
            self.parts = tuple(_widened(part, room) for part in past)
        for part, token in zip(self.parts, new, strict=True):
            part[:, :, place : place + 1] = token
        self.offset += 1

    def _remaining(self, seen: Parts, count: int) -> Parts:
        """Return the keys and values that a row keeps after `count` new tokens, each in its place.
        `seen` has the keys and values of the tokens kept so far, followed by those of the new
        tokens."""
        stop = self.offset + count
        if stop <= self.window.places:
            return seen
        past, at = self.size(), list(range(self.window.places))
        newest = max(self.offset, stop - self.window.tokens)
        for position in (*range(self.offset, self.window.sinks), *range(newest, stop)):
            at[self.window.place_of(position)] = past + position - self.offset
        order = mx.array(at)
        return tuple(mx.contiguous(mx.take(part, order, axis=2)) for part in seen)


class WindowBatchKV(LayerKV):
    """The KV of one attention layer for the decode batch, in arrays of (rows, heads, room,
    width)."""

    def __init__(self, rows: Sequence[WindowKV]) -> None:
        super().__init__()
        self.window = rows[0].window
        self.lengths = [row.offset for row in rows]
        room = max(row.size() for row in rows)
        pasts = [[_widened(part, room) for part in row.past()] for row in rows]
        self.parts = tuple(mx.concatenate(list(part)) for part in zip(*pasts, strict=True))

    @property
    def offset(self) -> int | mx.array:
        """Return the number of tokens before each row's next one: an int if it is the same for all
        rows, else (rows,) int32."""
        first = self.lengths[0]
        return first if self.lengths.count(first) == len(self.lengths) else mx.array(self.lengths)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the keys and values of one token per row, (rows, heads, 1, width). Return the keys
        and values in all places that any row uses."""
        places = [self.window.place_of(length) for length in self.lengths]
        if max(places) >= self.parts[0].shape[2]:
            room = min(max(places) + GROWTH_TOKENS, self.window.places)
            self.parts = tuple(_widened(part, room) for part in self.parts)
        new = (keys, values)
        if places.count(places[0]) == len(places):
            for part, tokens in zip(self.parts, new, strict=True):
                part[:, :, places[0] : places[0] + 1] = tokens
        else:
            at = mx.array(places)[:, None, None, None]
            self.parts = tuple(
                mx.put_along_axis(part, mx.broadcast_to(at, tokens.shape), tokens, axis=2)
                for part, tokens in zip(self.parts, new, strict=True)
            )
        self.lengths = [length + 1 for length in self.lengths]
        seen = self.size()
        return self.parts[0][:, :, :seen], self.parts[1][:, :, :seen]

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        """Return the attention mask (rows, 1, 1, places) for the next token of each row; None if
        every row attends to all places."""
        stops = [length + N for length in self.lengths]
        seen = min(max(stops), self.window.places)
        if window_size is None and min(stops) >= seen:
            return None
        after = mx.array(stops)[:, None, None, None]
        those = self.window.position_in(mx.arange(seen)[None, None, None], after)
        return self.window.sees(after - 1, those, after, window_size)

    def extend(self, other: WindowBatchKV) -> None:
        """Append the rows of another batch."""
        room = max(self.parts[0].shape[2], other.parts[0].shape[2])
        self.parts = tuple(
            mx.concatenate([_widened(own, room), _widened(more, room)])
            for own, more in zip(self.parts, other.parts, strict=True)
        )
        self.lengths += other.lengths

    def extract(self, slot: int) -> WindowKV:
        """Return a copy of one row."""
        row = WindowKV(self.window)
        row.offset = self.lengths[slot]
        row.parts = tuple(
            mx.contiguous(part[slot : slot + 1, :, : row.size()]) for part in self.parts
        )
        return row

    def filter(self, rows: mx.array) -> None:
        """Drop all rows but `rows`, in that order."""
        slots: list[int] = rows.tolist()  # pyright: ignore[reportAssignmentType]
        self.lengths = [self.lengths[slot] for slot in slots]
        self.parts = tuple(part[rows] for part in self.parts)

    def size(self) -> int:
        """Return the number of places in use."""
        return min(max(self.lengths), self.window.places)


def _widened(part: mx.array, room: int) -> mx.array:
    """Return the array, enlarged with zeros to `room` tokens."""
    rows, heads, taken, width = part.shape
    if taken >= room:
        return part
    return mx.concatenate([part, mx.zeros((rows, heads, room - taken, width), part.dtype)], axis=2)
