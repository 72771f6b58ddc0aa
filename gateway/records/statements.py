"""A SQL statement and its values, as pure modules hand it to the thread that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. Its values fill its question marks in order, or its parameters by name."""

    text: str
    values: Sequence[Any] | Mapping[str, Any] = ()
