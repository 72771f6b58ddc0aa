"""Talks to the sockets of MLX's ring: waits for bytes from a neighbour without using a core.

A receive in MLX's ring spins on the device until the bytes arrive. If ranks on one machine share
cores, this slows the ranks that compute.
"""

from __future__ import annotations

import select
from collections.abc import Collection


class RingWait:
    """Waits until one of these sockets has data or is closed."""

    def __init__(self, sockets: Collection[int]) -> None:
        self._poll = select.poll()
        for descriptor in sockets:
            self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s`, and return whether a socket has data or was closed. Other
        threads run meanwhile."""
        return bool(self._poll.poll(1000 * timeout_s))
