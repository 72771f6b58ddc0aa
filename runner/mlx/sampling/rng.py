"""The source of a row's randomness: a key made of (seed, position) alone.

Pure. `position` is the index that the token will have in the row's tokens, prompt included. So a
row draws the same numbers alone, in any batch, and after preemption.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def key_words(seed: int, position: int) -> tuple[int, int]:
    """Return two 32-bit words: splitmix64's finaliser over seed, then over seed and position."""
    mixed = _mix(_mix(seed & _MASK) ^ (position & _MASK))
    return mixed >> 32, mixed & 0xFFFFFFFF


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
