"""Limits how many bytes of unparsed request bodies one HTTP process holds in memory at the same
time, for all clients together.

Pure. A body counts from its first byte until it is parsed. After that, the limit on open requests
applies to its requests.
"""

from __future__ import annotations

from gateway.dialects.faults import HttpFault, HttpFaultRaised

LIMIT_BYTES = 256 << 20
RETRY_S = 1.0


class BodyBudget:
    """Counts the bytes of bodies in memory, and refuses further bytes at the limit."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes as in memory. Raises HttpFaultRaised (503) if that exceeds the
        limit."""
        if self.held_bytes + size > self._limit_bytes:
            text = f"too many request bodies at once; the limit is {self._limit_bytes >> 20} MiB"
            raise HttpFaultRaised(HttpFault(503, "overloaded", text, retry_after_s=RETRY_S))
        self.held_bytes += size

    def give_back(self, size: int) -> None:
        """Count `size` bytes as no longer in memory."""
        self.held_bytes -= size
