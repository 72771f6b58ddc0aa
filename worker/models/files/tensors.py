"""The tensors that the header of a safetensors file names.

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
    """One tensor as the header of its safetensors file gives it: `count` stored values, which lie
    from byte `first` behind the header up to, not including, `last`."""

    name: str
    dtype: str
    count: int
    first: int
    last: int

    def loaded_bytes(self, *, float32: bool) -> int:
        """Return its bytes in memory, perhaps after the cast; integers (packed quantized weights)
        stay as they are."""
        is_cast = float32 and self.dtype in DTYPE_BYTES
        return self.count * 4 if is_cast else self.last - self.first


def tensors_in(header: bytes) -> list[Tensor]:
    """Return the tensors in the header (JSON) of a safetensors file. Raises ValueError, KeyError,
    TypeError or AttributeError for anything else."""
    entries = cast(dict[str, Any], json.loads(header))
    return [
        Tensor(name, str(one["dtype"]), math.prod(one["shape"]), *map(int, one["data_offsets"]))
        for name, one in entries.items()
        if name != "__metadata__"
    ]
