"""The type of an SQL statement with its values. Pure modules return it, and the records thread runs
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Statement:
    """An SQL statement and its values: a sequence for question marks, or a mapping for named
    parameters."""

    text: str
    values: Sequence[Any] | Mapping[str, Any] = ()
