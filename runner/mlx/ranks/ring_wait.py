"""Talks to the sockets of MLX's ring: waits for bytes from the neighbour without burning a core.

A ring's `recv` spins from when the device comes to it until the bytes are there. Where ranks share
cores, or compute on them, that takes from the ones that work.
"""

from __future__ import annotations

import select
from collections.abc import Collection


class RingWait:
    """Waits until there is something to read, or an end, on one of these sockets."""

    def __init__(self, sockets: Collection[int]) -> None:
        self._poll = select.poll()
        for descriptor in sockets:
            self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Return whether there was something in that time; other threads run meanwhile."""
        return bool(self._poll.poll(1000 * timeout_s))
