"""Talks to the sockets of MLX's ring: waits for bytes from the neighbour without burning a core.

A ring's `recv` spins from when the device comes to it until the bytes are there. Where ranks share
cores, or compute on them, that takes from the ones that work. MLX keeps its sockets for the life
of the process and tells nobody of them: they are found by their ports, and only ever polled.
"""

from __future__ import annotations

import os
import select
import socket
import stat
from collections.abc import Collection
from contextlib import suppress

OPEN_FILES = "/dev/fd"


def ring_sockets(ports: Collection[int]) -> list[int]:
    """Descriptors of this process's IPv4 connections that have one of these ports at an end."""
    found: list[int] = []
    for descriptor in map(int, os.listdir(OPEN_FILES)):
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                if copy.family != socket.AF_INET or copy.type != socket.SOCK_STREAM:
                    continue
                if {copy.getsockname()[1], copy.getpeername()[1]} & set(ports):
                    found.append(descriptor)
    return found


class RingWait:
    """Rings when there is something to read, or an end, on one of these sockets."""

    def __init__(self, sockets: Collection[int]) -> None:
        self._poll = select.poll()
        for descriptor in sockets:
            self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Whether it rang within that time; other threads run meanwhile."""
        return bool(self._poll.poll(1000 * timeout_s))
