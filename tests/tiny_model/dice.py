"""Chance without a source of chance: a small generator that a seed settles for ever.

Pure. The same seed gives the same draws on every machine and every Python, which
the standard library does not promise of its own shuffles and choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_MASK = (1 << 64) - 1


class Dice:
    """Draws from a 64-bit state that advances by a constant (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK

    def word(self) -> int:
        """The next 64 bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + self.word() % (high - low + 1)

    def chance(self, share: float) -> bool:
        """True in about `share` of all calls."""
        return (self.word() >> 11) < share * (1 << 53)

    def one(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.word() % len(options)]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """`count` different options in a drawn order."""
        left = list(options)
        return [left.pop(self.word() % len(left)) for _ in range(count)]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """All options in a drawn order."""
        return self.some(options, len(options))

    def weighted(self, options: Sequence[tuple[T, float]]) -> T:
        """One option, each as likely as its weight says."""
        total = sum(weight for _, weight in options)
        at = (self.word() >> 11) / (1 << 53) * total
        for option, weight in options:
            at -= weight
            if at < 0:
                return option
        return options[-1][0]
