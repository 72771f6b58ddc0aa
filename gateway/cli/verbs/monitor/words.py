"""Formats figures of a cluster as text.

Pure. Unknown values are "-", never 0.
"""

from __future__ import annotations

import math

from gateway.cli.output.amounts import span

UNKNOWN = "-"


def delay(seconds: float) -> str:
    """Return a latency for people: `0.4 ms`, `12 ms`, `1.3 s`; `longer` for infinity."""
    if math.isinf(seconds):
        return "longer"
    if seconds < 1:
        return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else span(seconds)


def count(number: int, word: str) -> str:
    """Return a number with its noun, in singular or plural."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def copies_of(number: int) -> str:
    """Return a number of instances, in words."""
    return "1 instance" if number == 1 else f"{number} instances"


def rate(value: float | None) -> str:
    """Return a rate. From 100 on it is a whole number, below that it has one decimal; "-" if
    unknown."""
    return UNKNOWN if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def number(value: int | None) -> str:
    """Return a number; "-" if unknown."""
    return UNKNOWN if value is None else str(value)


def part_of(part: int | None, whole: int | None) -> str:
    """Return `PART of WHOLE`; "-" if either is unknown."""
    return UNKNOWN if part is None or whole is None else f"{part} of {whole}"
