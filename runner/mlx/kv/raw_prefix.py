# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval` untyped)
"""Talks to MLX: turns a kept prefix into bytes for a file, and such bytes into caches.

All calls come from the engine's thread. Another thread can then read the bytes of evaluated arrays
without a copy, because the arrays of a kept prefix are never changed, and the bytes keep their
array alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import numpy as np

from bus.models.kv import StoredPart
from runner.mlx.kv.row_kv import RowKV

TYPES: dict[str, mx.Dtype] = {
    "F32": mx.float32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,
}
NAMES = {dtype: name for name, dtype in TYPES.items()}


@dataclass(frozen=True, slots=True)
class RawPrefix:
    """The arrays of a kept prefix, layer by layer, viewed as bytes: (1, heads, tokens, bytes of a
    head). They may not be evaluated yet. `types` has the original type of each, as in `TYPES`."""

    arrays: tuple[mx.array, ...]
    types: tuple[str, ...]

    @classmethod
    def of(cls, caches: Sequence[RowKV]) -> RawPrefix:
        """Return the arrays of these caches. The caches must have no unused room."""
        parts = [part for cache in caches for part in cache.past()]
        types = tuple(NAMES[part.dtype] for part in parts)
        return cls(tuple(part.view(mx.uint8) for part in parts), types)

    def stored(self) -> list[StoredPart]:
        """Wait until the arrays are computed, and return them for a file."""
        mx.eval(self.arrays)
        parts: list[StoredPart] = []
        for array, name in zip(self.arrays, self.types, strict=True):
            *outer, width = array.shape
            shape = (*outer, width // TYPES[name].size)
            raw = memoryview(cast("Any", array))
            parts.append(StoredPart(name, shape, raw.cast("B")))
        return parts


def filled(empty: Sequence[Any], stored: Sequence[StoredPart], length: int) -> list[RowKV] | None:
    """Return caches like `empty` with the KV of the first `length` tokens of the stored arrays.
    Return None if the stored arrays belong to other layers than those of `empty`."""
    caches: list[RowKV] = []
    left = list(stored)
    for cache in empty:
        if not isinstance(cache, RowKV) or len(left) < cache.codec.parts:
            return None
        taken, left = left[: cache.codec.parts], left[cache.codec.parts :]
        parts = tuple(_array(part, length) for part in taken)
        caches.append(RowKV.holding(parts, cache.codec))
    return None if left else caches


def _array(part: StoredPart, length: int) -> mx.array:
    """Return a copy of the part's first `length` tokens, as an array."""
    rows, heads, tokens, width = part.shape
    dtype = TYPES[part.dtype]
    columns = np.frombuffer(part.content, np.uint8).reshape(rows, heads, tokens, width * dtype.size)
    return mx.array(columns[:, :, :length]).view(dtype)
