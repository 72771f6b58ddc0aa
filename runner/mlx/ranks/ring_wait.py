"""Talks to the sockets of MLX's ring: waits for bytes from a neighbour without using a core.

A ring's `recv` spins on the device until the bytes arrive. If ranks share cores, or compute on
them, that slows the working ranks.
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
        """Return whether there was data within that time; other threads run meanwhile."""
        return bool(self._poll.poll(1000 * timeout_s))
