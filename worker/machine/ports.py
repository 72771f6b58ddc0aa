"""Talks to the system: chooses unused ports, from a configured range, for the ranks of groups.

Each attempt to start a group gets ports that were not used recently. Otherwise a rank of an earlier
attempt could accept a connection meant for a new rank (MLX's ring shares its ports).
"""

from __future__ import annotations

import secrets
import socket

from bus.wire.errors import PortTaken


class PortPool:
    """The `count` ports from `first` on. They are used in turn, beginning with a random one."""

    def __init__(self, first: int, count: int) -> None:
        self._first = first
        self._count = count
        self._next = secrets.randbelow(count) if count else 0

    def fresh(self, host: str) -> int:
        """Return the next port that can be bound on `host` now. Raises PortTaken if there is
        none."""
        for _ in range(self._count):
            port = self._first + self._next % self._count
            self._next += 1
            with socket.socket() as probe:
                try:
                    probe.bind((host, port))
                except OSError:
                    continue
                return port
        last = self._first + self._count - 1
        raise PortTaken(f"no port from {self._first} to {last} is free on {host} for a rank")
