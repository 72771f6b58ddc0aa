"""The random key of a token, which depends only on the row's seed and the token's position.

Pure. `position` is the index of the token in its row, prompt included. So a row draws the same
numbers alone, in any batch, and after preemption.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def key_words(seed: int, position: int) -> tuple[int, int]:
    """Return the key as two 32-bit words. It is made with splitmix64's finaliser, applied to the
    seed, and then to that result combined with the position."""
    mixed = _mix(_mix(seed & _MASK) ^ (position & _MASK))
    return mixed >> 32, mixed & 0xFFFFFFFF


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
