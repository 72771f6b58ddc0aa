"""Talks to MLX: computes the prompt chunks of several rows as one padded batch.

The depth of a row is the number of its tokens computed so far. Rows may have different depths. For
the forward pass, the stored KV of each row is padded to the greatest depth, and the chunks are
padded on the right. A mask says to which tokens each token attends. Each row's part of the new KV
is then appended to the row's own `RowKV`, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from runner.mlx.kv.row_kv import RowKV


class GroupShape:
    """The depths of the rows (`starts`), the lengths of their chunks, and the offsets and masks of
    a forward pass over these chunks. All layers share it."""

    def __init__(self, starts: Sequence[int], lengths: Sequence[int]) -> None:
        self.starts = tuple(starts)
        self.lengths = tuple(lengths)
        self.deepest = max(starts)
        self.level = len(set(starts)) == 1
        self.offset: int | mx.array = self.starts[0] if self.level else mx.array(self.starts)
        self._masks: dict[tuple[int, int | None], mx.array] = {}

    def mask(self, count: int, window: int | None) -> mx.array:
        """Return the mask (rows, 1, count, deepest + count), which says to which positions each
        token of a chunk attends. `window` is the model's sliding window; None: there is none."""
        key = (count, window)
        if key not in self._masks:
            self._masks[key] = self._make_mask(count, window)
        return self._masks[key]

    def _make_mask(self, count: int, window: int | None) -> mx.array:
        starts = mx.array(self.starts)[:, None, None, None]
        past = mx.arange(self.deepest)[None, None, None]
        here = mx.arange(count)
        mask_past = mx.broadcast_to(past < starts, (len(self.starts), 1, count, self.deepest))
        mask_here = mx.broadcast_to(
            here[:, None] >= here[None], (len(self.starts), 1, count, count)
        )
        if window is not None:
            these = starts + here[None, None, :, None]
            mask_past = mask_past & (these < past + window)
            mask_here = mask_here & (here[:, None] < here[None] + window)
        return mx.concatenate([mask_past, mask_here], axis=-1)


class GroupKV:
    """The KV of one attention layer in a forward pass over chunks of several rows; the model uses
    it as its cache."""

    def __init__(self, shape: GroupShape, rows: Sequence[RowKV]) -> None:
        self._shape = shape
        self._rows = tuple(rows)

    @property
    def offset(self) -> int | mx.array:
        """Return the number of tokens before each row's chunk: an int if it is the same for all
        rows, else (rows,) int32."""
        return self._shape.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the keys and values of each row's chunk to that row; the arguments are (rows,
        heads, count, width). Return the keys and values of the earlier tokens (padded) and of the
        chunks, (rows, heads, deepest + count, width)."""
        codec = self._rows[0].codec
        parts = codec.encode(keys, values)
        all_keys, all_values = codec.fetch(parts)
        if self._shape.deepest:
            pasts = [codec.fetch(row.past()) if row.offset else None for row in self._rows]
            all_keys = self._joined([past and past[0] for past in pasts], all_keys)
            all_values = self._joined([past and past[1] for past in pasts], all_values)
        for index, (row, length) in enumerate(zip(self._rows, self._shape.lengths, strict=True)):
            row.append(tuple(part[index : index + 1, :, :length] for part in parts))
        return all_keys, all_values

    def _joined(self, pasts: Sequence[mx.array | None], chunk: mx.array) -> mx.array:
        _, heads, _, width = chunk.shape
        deepest = self._shape.deepest
        padded: list[mx.array] = []
        for past in pasts:
            if past is None:
                padded.append(mx.zeros((1, heads, deepest, width), chunk.dtype))
            elif past.shape[2] < deepest:
                tail = mx.zeros((1, heads, deepest - past.shape[2], width), chunk.dtype)
                padded.append(mx.concatenate([past, tail], axis=2))
            else:
                padded.append(past)
        return mx.concatenate([mx.concatenate(padded), chunk], axis=2)

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the attention mask for a chunk of `N` tokens, or mlx-lm's name of a standard mask
        if that suffices."""
        if self._shape.level and window_size is None and not return_array:
            return None if N == 1 else "causal"
        return self._shape.mask(N, window_size)

    def size(self) -> int:
        """Return the greatest number of earlier tokens of a row."""
        return self._shape.deepest

    def empty(self) -> bool:
        """Return whether no row has earlier tokens."""
        return self._shape.deepest == 0

    @property
    def state(self) -> list[Any]:
        """Return the arrays of all rows, for evaluation."""
        return [array for row in self._rows for array in row.state]
