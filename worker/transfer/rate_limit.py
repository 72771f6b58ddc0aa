"""Limit the rate at which this node sends weights, so that its other traffic gets its share of the
network.

Pure: time arrives as `now`. The limit is a leaky bucket of one piece: after a number of bytes, the
next send waits for the time that these bytes take at the permitted rate.
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
