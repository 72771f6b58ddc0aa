"""Limit of the bytes of request bodies that one HTTP process holds at once, for all clients
together.

Pure. A body counts from its first byte until it is parsed; then its requests count.
"""

from __future__ import annotations

from gateway.dialects.faults import HttpFault, HttpFaultRaised

LIMIT_BYTES = 256 << 20
RETRY_S = 1.0


class BodyBudget:
    """Counts the bytes held, and refuses bytes over the limit."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def take(self, size: int) -> None:
        """Count `size` further bytes as held. Raises HttpFaultRaised (503)."""
        if self.held_bytes + size > self._limit_bytes:
            text = f"too many request bodies at once; the limit is {self._limit_bytes >> 20} MiB"
            raise HttpFaultRaised(HttpFault(503, "overloaded", text, retry_after_s=RETRY_S))
        self.held_bytes += size

    def give_back(self, size: int) -> None:
        """Count `size` bytes as freed."""
        self.held_bytes -= size
