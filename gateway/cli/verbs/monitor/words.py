"""Figures of a cluster in words.

Pure. What is not known is "-", never 0.
"""

from __future__ import annotations

import math

from gateway.cli.output.amounts import span

UNKNOWN = "-"


def delay(seconds: float) -> str:
    """Return a latency for people: `0.4 ms`, `12 ms`, `1.3 s`; infinity is beyond what is told
    apart."""
    if math.isinf(seconds):
        return "longer"
    if seconds < 1:
        return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else span(seconds)


def count(number: int, word: str) -> str:
    """Return a number of things, in words."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def copies_of(number: int) -> str:
    """Return a number of copies, in words."""
    return "1 instance" if number == 1 else f"{number} instances"


def rate(value: float | None) -> str:
    """Return a rate with as many digits as it deserves."""
    return UNKNOWN if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def number(value: int | None) -> str:
    """Return a number, where it is known."""
    return UNKNOWN if value is None else str(value)


def part_of(part: int | None, whole: int | None) -> str:
    """Return a part of a whole, where both are known."""
    return UNKNOWN if part is None or whole is None else f"{part} of {whole}"
