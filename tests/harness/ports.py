"""Free TCP ports for tests, below the systems' ephemeral ranges, where no outgoing connection of
another test takes a port between the look at it and its use."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from itertools import cycle

FIRST, LAST = 10_000, 20_000
"""Nodes of tests have those above (`tests.harness.nodes.free_base_port`)."""


def _own() -> Iterator[int]:
    """Give the ports of this process in turn: those of one test run that are beside each other
    have ranges of their own."""
    runs = max(1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = (LAST - FIRST) // runs
    start = os.getpid() * 37 % width
    for offset in cycle(range(width)):
        yield FIRST + number * width + (start + offset) % width


_PORTS = _own()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has, another one each time."""
    for _ in range(LAST - FIRST):
        port = next(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def free_ports(count: int) -> list[int]:
    """Return so many ports that nobody has, all different."""
    return [free_port() for _ in range(count)]
