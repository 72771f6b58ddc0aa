"""What one check of `shoal doctor` found.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from bus.wire.errors import ShoalError

Level = Literal["ok", "warn", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and how to mend it: `remedy` is empty exactly when all is well."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def guarded(name: str, checks: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the checks' findings; a warning in place of those that an error kept back."""
    try:
        yield from checks
    except (OSError, ShoalError, ValueError) as error:
        yield Finding(name, "warn", f"check failed: {error}", "see `shoal logs`")
