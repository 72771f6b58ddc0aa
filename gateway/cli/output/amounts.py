"""Format bytes, seconds and counts for people.

Pure.
"""

from __future__ import annotations


def size(count: float) -> str:
    """Return bytes for people: `512 B`, `9.8 MB`, `1.2 GB` (powers of 1000, as disks are sold)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def span(seconds: float) -> str:
    """Return seconds for people: `4 s`, `3 min`, `2 h`, `5 d`."""
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def number(count: int) -> str:
    """Return a count for people: `512`, `1.5k`, `7.6B`; `-` for 0, which means unknown."""
    for unit, factor in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f}{unit}"
    return str(count) if count else "-"
