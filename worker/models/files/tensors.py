"""The tensors in the header of a safetensors file.

Pure.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, cast

DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's entry in the header of its safetensors file: `count` stored values, from byte
    `first` after the header up to, not including, `last`."""

    name: str
    dtype: str
    count: int
    first: int
    last: int

    def loaded_bytes(self, *, float32: bool) -> int:
        """Return the tensor's bytes in memory. With `float32`, floating-point values are cast to 32
        bits; integers (packed quantized weights) are not cast."""
        is_cast = float32 and self.dtype in DTYPE_BYTES
        return self.count * 4 if is_cast else self.last - self.first


def tensors_in(header: bytes) -> list[Tensor]:
    """Return the tensors in a safetensors header (JSON). Raises ValueError, KeyError, TypeError or
    AttributeError if the bytes are no such header."""
    entries = cast(dict[str, Any], json.loads(header))
    return [
        Tensor(
            name, str(entry["dtype"]), math.prod(entry["shape"]), *map(int, entry["data_offsets"])
        )
        for name, entry in entries.items()
        if name != "__metadata__"
    ]
