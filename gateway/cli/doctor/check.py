"""What one check of `shoal doctor` found.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and how to mend it: `remedy` is empty exactly when all is well."""

    name: str
    level: Level
    found: str
    remedy: str = ""
