"""Limit the rate of weights leaving this node, so that its other traffic has its share.

Pure: time arrives as `now`. A leaky bucket of one piece: sent bytes delay the next send by their
length over the rate.
"""

from __future__ import annotations


class RateLimit:
    """Limits the rate of sent bytes to `bytes_per_s`; 0 means no limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next send; 0 if it may begin now."""
        return max(0.0, self._free_at - now)

    def sent(self, count: int, now: float) -> None:
        if self._bytes_per_s:
            self._free_at = max(now, self._free_at) + count / self._bytes_per_s
