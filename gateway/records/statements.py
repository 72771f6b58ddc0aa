"""An SQL statement with its values, which pure modules return and the records thread runs; and the
error if it cannot be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.wire.errors import ShoalError


@dataclass(frozen=True, slots=True)
class Statement:
    """An SQL statement and its values: a sequence for question marks, or a mapping for named
    parameters."""

    text: str
    values: Sequence[Any] | Mapping[str, Any] = ()


class RecordsUnavailable(ShoalError):
    """The records cannot be read or written now; retrying may help."""
