"""Talks to MLX: the KV of one row before it joins the decode batch.

A `RowKV` has the KV of one layer of one row. If a prompt is computed alone, the model uses it as
its cache. If several prompts are computed as a padded batch, `runner.mlx.kv.padded_batch` appends
the KV of each row to its `RowKV`. Only the first `offset` positions are valid and read.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from runner.mlx.kv.codec import FULL_WIDTH, Codec, Parts

GROWTH_TOKENS = 256


class LayerKV:
    """The stored keys and values of one attention layer; no `parts` if nothing is stored."""

    def __init__(self, codec: Codec = FULL_WIDTH) -> None:
        self.codec = codec
        self.parts: Parts = ()

    def empty(self) -> bool:
        return not self.parts

    @property
    def state(self) -> tuple[Any, ...]:
        """Return the arrays, for evaluation."""
        return self.parts

    @state.setter
    def state(self, state: tuple[Any, ...]) -> None:
        """Replace the arrays."""
        self.parts = tuple(state)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays, spare room included."""
        return sum(part.nbytes for part in self.parts)


class RowKV(LayerKV):
    """One attention layer's keys and values of one row, in parts of (1, heads, room, width).

    If a prompt comes in several chunks, room for `reserve` tokens is allocated with its first
    chunk, so that later chunks need no copying.
    """

    def __init__(self, reserve: int = 0, codec: Codec = FULL_WIDTH) -> None:
        super().__init__(codec)
        self.offset = 0
        self.reserve = reserve

    @classmethod
    def holding(cls, parts: Parts, codec: Codec = FULL_WIDTH, *, reserve: int = 0) -> RowKV:
        """Return a `RowKV` that holds `parts`, stored by `codec`."""
        row = cls(reserve, codec)
        row.parts, row.offset = parts, parts[0].shape[2]
        return row

    def append(self, parts: Parts) -> None:
        """Append the stored parts of n tokens, each (1, heads, n, width)."""
        stop = self.offset + parts[0].shape[2]
        if not self.parts:
            if stop >= self.reserve:
                self.parts, self.offset = parts, stop
                return
            self.parts = tuple(_room(part, self.reserve) for part in parts)
        elif stop > self.parts[0].shape[2]:
            room = max(self.reserve, stop + GROWTH_TOKENS - 1)
            self.parts = tuple(_moved(part, self.offset, room) for part in self.parts)
        for held, new in zip(self.parts, parts, strict=True):
            held[:, :, self.offset : stop] = new
        self.offset = stop

    def past(self, length: int | None = None) -> Parts:
        """Return views of the stored parts of the first `length` tokens (default: all)."""
        if not self.parts:
            raise ValueError("the row has no KV yet")
        stop = self.offset if length is None else length
        if stop == self.parts[0].shape[2]:
            return self.parts
        return tuple(part[:, :, :stop] for part in self.parts)

    # What a model calls.

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the keys and values of n tokens, (1, heads, n, width). Return those of all tokens,
        (1, heads, offset, width)."""
        self.append(self.codec.encode(keys, values))
        return self.codec.fetch(self.past())

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the attention mask for the next `N` tokens, or mlx-lm's name of a standard mask if
        that suffices."""
        if window_size is not None or (return_array and N > 1):
            return causal_mask(N, self.offset, window_size)
        return None if N == 1 else "causal"

    def size(self) -> int:
        """Return the number of stored tokens."""
        return self.offset


def causal_mask(count: int, offset: int, window: int | None) -> mx.array:
    """Return the mask (count, offset + count), which says to which positions each of `count` new
    tokens attends."""
    those = mx.arange(offset + count)[None]
    these = mx.arange(offset, offset + count)[:, None]
    mask = these >= those
    return mask if window is None else mask & (these < those + window)


def _room(like: mx.array, tokens: int) -> mx.array:
    _, heads, _, width = like.shape
    return mx.zeros((1, heads, tokens, width), like.dtype)


def _moved(past: mx.array, length: int, tokens: int) -> mx.array:
    room = _room(past, tokens)
    room[:, :, :length] = past[:, :, :length]
    return room
