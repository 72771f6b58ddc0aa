"""Talks to MLX: the KV of one row by itself, before it joins the decode batch.

A `RowKV` is one layer of one row. It is what a model calls a cache while a prompt is
being computed alone; a group of rows computed together appends to theirs through
`runner.mlx.kv.padded_batch`. Positions 0..offset are valid, nothing else is ever read.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

GROWTH_TOKENS = 256


class LayerKV:
    """Keys and values of one attention layer: both None where nothing is held."""

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def empty(self) -> bool:
        """Return whether nothing is held."""
        return self.keys is None

    @property
    def state(self) -> tuple[Any, ...]:
        """Return the arrays, for evaluation."""
        return (self.keys, self.values)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays, spare room included."""
        if self.keys is None or self.values is None:
            return 0
        return self.keys.nbytes + self.values.nbytes


class RowKV(LayerKV):
    """One attention layer's keys and values of one row: (1, heads, room, width) each.

    `reserve` tokens are allocated when the first part of a longer prompt arrives, so that a
    chunked prefill never copies what it already has.
    """

    def __init__(self, reserve: int = 0) -> None:
        super().__init__()
        self.offset = 0
        self.reserve = reserve

    @classmethod
    def holding(cls, keys: mx.array, values: mx.array, *, reserve: int = 0) -> RowKV:
        """Return a row that starts with all of `keys` and `values` as its past."""
        row = cls(reserve)
        row.keys, row.values, row.offset = keys, values, keys.shape[2]
        return row

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Put (1, heads, n, width) arrays after what is here."""
        count = keys.shape[2]
        stop = self.offset + count
        if self.keys is None or self.values is None:
            if stop >= self.reserve:
                self.keys, self.values, self.offset = keys, values, stop
                return
            self.keys = _room(keys, self.reserve)
            self.values = _room(values, self.reserve)
        elif stop > self.keys.shape[2]:
            room = max(self.reserve, stop + GROWTH_TOKENS - 1)
            self.keys = _moved(self.keys, self.offset, room)
            self.values = _moved(self.values, self.offset, room)
        self.keys[:, :, self.offset : stop] = keys
        self.values[:, :, self.offset : stop] = values
        self.offset = stop

    def past(self, length: int | None = None) -> tuple[mx.array, mx.array]:
        """Return views of the first `length` (default: all) tokens' keys and values."""
        if self.keys is None or self.values is None:
            raise ValueError("the row has no past yet")
        stop = self.offset if length is None else length
        if stop == self.keys.shape[2]:
            return self.keys, self.values
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    # What a model calls.

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append (1, heads, n, width) arrays. Return all there is, (1, heads, offset, width)."""
        self.append(keys, values)
        return self.past()

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the mask of `N` tokens that come next, or mlx-lm's word for it where one fits."""
        if window_size is not None or (return_array and N > 1):
            return causal_mask(N, self.offset, window_size)
        return None if N == 1 else "causal"

    def size(self) -> int:
        """Return the tokens held."""
        return self.offset


def causal_mask(count: int, offset: int, window: int | None) -> mx.array:
    """Return (count, offset + count): which positions each of `count` new tokens may attend to."""
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
