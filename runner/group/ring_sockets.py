"""Talks to the sockets of MLX's ring: which they are, and how many bytes they have carried.

MLX keeps its sockets for the life of the process and does not tell of them: they are found by their
ports, and only looked at. A rank is connected to by the rank before it, at its own port, and
connects to the port of the one after it. The system counts what a connection carries.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from bus.wire.ids import NodeId
from bus.wire.messages.control import GroupSpec, RankSeat
from runner.group.lockstep import CountsBytes

OPEN_FILES = "/dev/fd"


def ring_sockets(ports: Collection[int]) -> list[int]:
    """Return descriptors of this process's IPv4 connections with one of these ports at an end."""
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


@dataclass(frozen=True, slots=True)
class TcpCounts:
    """Where a system has the counts of a TCP connection: in the `size` bytes of the socket's
    `option`, 8 bytes each. `sent` has what was sent twice, which is `resent`."""

    option: int
    size: int
    sent_at: int
    resent_at: int
    received_at: int

    def of(self, connection: socket.socket) -> tuple[int, int] | None:
        """Return the bytes that it has sent, none of them twice, and had; None where the system
        does not tell."""
        with suppress(OSError):
            return self.read(connection.getsockopt(socket.IPPROTO_TCP, self.option, self.size))
        return None

    def read(self, told: bytes) -> tuple[int, int] | None:
        """Return the same of what the system said; None where that is too short."""
        places = (self.sent_at, self.resent_at, self.received_at)
        if len(told) < max(places) + _COUNT.size:
            return None
        sent, resent, received = (int(_COUNT.unpack_from(told, place)[0]) for place in places)
        return sent - resent, received


_COUNT = struct.Struct("=Q")
TCP_COUNTS = {
    "linux": TcpCounts(option=11, size=216, sent_at=200, resent_at=208, received_at=128),
    "darwin": TcpCounts(option=0x106, size=112, sent_at=64, resent_at=72, received_at=88),
}
"""`struct tcp_info` of Linux 4.19 and later, which takes the end of a connection for one byte more;
`struct tcp_connection_info` of macOS."""


@dataclass(slots=True)
class _Neighbour:
    """A connection to another rank, and what was counted of it."""

    counts: TcpCounts
    connection: socket.socket
    way: CountsBytes
    sent: int = 0
    received: int = 0

    def look(self) -> None:
        """Count what came and went since the last look."""
        told = self.counts.of(self.connection)
        if told is None:
            return
        sent, received = max(told[0], self.sent), max(told[1], self.received)
        self.way.add_sent(sent - self.sent)
        self.way.add_received(received - self.received)
        self.sent, self.received = sent, received


class RingTraffic:
    """Counts what crosses between one rank of a ring and its neighbours on other nodes, from the
    first byte on, at each `look`. Made once the ring has formed; one thread's.

    `way_of` returns the count of a node, None for the rank's own; it is asked for nodes whose
    connections the system tells of.
    """

    def __init__(
        self, group: GroupSpec, rank: int, way_of: Callable[[NodeId], CountsBytes | None]
    ) -> None:
        self._neighbours: list[_Neighbour] = []
        counts = TCP_COUNTS.get(sys.platform)
        if counts is None:
            return
        before, own, after = (group.ranks[(rank + by) % len(group.ranks)] for by in (-1, 0, 1))
        for descriptor in ring_sockets(_ports(own) | _ports(after)):
            connection = socket.socket(fileno=os.dup(descriptor))
            is_before = connection.getsockname()[1] in _ports(own)
            is_after = not is_before and _port_of_peer(connection) in _ports(after)
            way = None
            if (is_before or is_after) and counts.of(connection) is not None:
                way = way_of(before.node if is_before else after.node)
            if way is None:
                connection.close()
            else:
                self._neighbours.append(_Neighbour(counts, connection, way))

    def look(self) -> None:
        """Count what came and went since the last look."""
        for one in self._neighbours:
            one.look()

    def close(self) -> None:
        """Let go of the connections, which remain MLX's."""
        for one in self._neighbours:
            one.connection.close()
        self._neighbours.clear()


def _ports(seat: RankSeat) -> set[int]:
    return {int(address.rpartition(":")[2]) for address in seat.ring}


def _port_of_peer(connection: socket.socket) -> int:
    """Return the other end's port; 0 where it is gone."""
    try:
        return int(connection.getpeername()[1])
    except OSError:
        return 0
