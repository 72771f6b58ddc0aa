"""The result of one check of `shoal doctor`.

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
    """The result of a check. `found` tells the user the result. `remedy` is empty if and only if
    `level` is ok."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def guarded(name: str, checks: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the checks' findings. If a check raises an expected error, yield a warning and stop."""
    try:
        yield from checks
    except (OSError, ShoalError, ValueError) as error:
        yield Finding(name, "warn", f"check failed: {error}", "see `shoal logs`")
