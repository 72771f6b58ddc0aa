"""Talks to the sockets of MLX's ring: finds them and reads their byte counts.

MLX keeps its sockets for the life of the process and does not expose them. They are found by their
ports and only inspected. The previous rank connects to a rank's own port; the rank connects to the
port of the next. The system counts the bytes of a connection.
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
    """Return descriptors of this process's IPv4 connections in which either end has one of these
    ports."""
    sockets: list[int] = []
    for descriptor in map(int, os.listdir(OPEN_FILES)):
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                if copy.family != socket.AF_INET or copy.type != socket.SOCK_STREAM:
                    continue
                if {copy.getsockname()[1], copy.getpeername()[1]} & set(ports):
                    sockets.append(descriptor)
    return sockets


@dataclass(frozen=True, slots=True)
class TcpCounts:
    """Layout of a system's TCP counters: the socket option `option` returns `size` bytes, with
    counters of 8 bytes each. `sent` includes retransmissions, which `resent` counts."""

    option: int
    size: int
    sent_at: int
    resent_at: int
    received_at: int

    def of(self, connection: socket.socket) -> tuple[int, int] | None:
        """Return the bytes sent (without retransmissions) and received; None if the system does not
        report them."""
        with suppress(OSError):
            return self.read(connection.getsockopt(socket.IPPROTO_TCP, self.option, self.size))
        return None

    def read(self, data: bytes) -> tuple[int, int] | None:
        """Return the bytes sent and received, as in `of`, from the option's `data`; None if it is
        too short."""
        places = (self.sent_at, self.resent_at, self.received_at)
        if len(data) < max(places) + _COUNT.size:
            return None
        sent, resent, received = (int(_COUNT.unpack_from(data, place)[0]) for place in places)
        return sent - resent, received


_COUNT = struct.Struct("=Q")
TCP_COUNTS = {
    "linux": TcpCounts(option=11, size=216, sent_at=200, resent_at=208, received_at=128),
    "darwin": TcpCounts(option=0x106, size=112, sent_at=64, resent_at=72, received_at=88),
}
"""The layouts by system: of `struct tcp_info` on Linux 4.19 and later, which counts the end of a
connection as one more byte, and of `struct tcp_connection_info` on macOS."""


@dataclass(slots=True)
class _Neighbour:
    """A connection to a neighbouring rank, and the bytes counted so far."""

    counts: TcpCounts
    connection: socket.socket
    way: CountsBytes
    sent: int = 0
    received: int = 0

    def look(self) -> None:
        """Add the bytes since the last call to the rank's counter."""
        counts = self.counts.of(self.connection)
        if counts is None:
            return
        sent, received = max(counts[0], self.sent), max(counts[1], self.received)
        self.way.add_sent(sent - self.sent)
        self.way.add_received(received - self.received)
        self.sent, self.received = sent, received


class RingTraffic:
    """Counts the traffic between one rank of a ring and its neighbours on other nodes, from the
    first byte, at each `look`. Create it after the ring has formed; use it from one thread.

    `way_of` returns the counter of a node, None for the rank's own node. It is called for nodes
    whose connections the system counts.
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
        """Add the bytes since the last call to the counters of the neighbours."""
        for neighbour in self._neighbours:
            neighbour.look()

    def close(self) -> None:
        """Close our descriptors of the connections; MLX's own stay open."""
        for neighbour in self._neighbours:
            neighbour.connection.close()
        self._neighbours.clear()


def _ports(seat: RankSeat) -> set[int]:
    return {int(address.rpartition(":")[2]) for address in seat.ring}


def _port_of_peer(connection: socket.socket) -> int:
    """Return the other end's port; 0 if the connection is gone."""
    try:
        return int(connection.getpeername()[1])
    except OSError:
        return 0
