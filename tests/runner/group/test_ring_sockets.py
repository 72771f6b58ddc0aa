"""A ring's sockets are found by their ports, and what they carried is counted by the system."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest

from bus.links.traffic import Crossed, Traffic
from bus.wire.ids import NodeId
from bus.wire.messages.control import GroupSpec
from runner.group.ring_sockets import TCP_COUNTS, RingTraffic, ring_sockets
from tests.harness.ranks import group_spec

Pair = tuple[socket.socket, socket.socket]


def connected() -> Pair:
    """Return a connection's ends: who dialled, and who was dialled at a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        dialled = socket.create_connection(server.getsockname())
        listened, _ = server.accept()
    return dialled, listened


def port_of(listened: socket.socket) -> int:
    return listened.getsockname()[1]


def passed(giver: socket.socket, taker: socket.socket, size: int) -> None:
    """Send so many bytes, a piece at a time, and take them all."""
    while size:
        given = giver.send(b"x" * min(size, 1 << 16))
        size -= given
        while given:
            given -= len(taker.recv(given))


@pytest.fixture
def pair() -> Iterator[Pair]:
    dialled, listened = connected()
    with closing(dialled), closing(listened):
        yield dialled, listened


def test_only_connections_at_the_rings_ports_are_found(pair: Pair) -> None:
    ours, theirs = pair
    local, remote = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as other, local, remote:
        other_port = other.getsockname()[1]
        assert set(ring_sockets({port_of(theirs)})) == {ours.fileno(), theirs.fileno()}
        assert ring_sockets({other_port}) == [], "it listens and is no connection"
    assert ring_sockets(()) == []


@pytest.fixture
def ring() -> Iterator[tuple[GroupSpec, Pair, Pair]]:
    """A ring of three; the connection from rank 0 to rank 1, and from there to rank 2."""
    group = group_spec("tensor", [(0, 8)] * 3)
    before, after = connected(), connected()
    ports = {1: port_of(before[1]), 2: port_of(after[1])}
    seats = tuple(
        seat.model_copy(update={"ring": (f"127.0.0.1:{ports.get(seat.rank, 1)}",)})
        for seat in group.ranks
    )
    yield group.model_copy(update={"ranks": seats}), before, after
    for end in (*before, *after):
        end.close()


def test_what_crosses_to_each_neighbour_is_counted_from_the_first_byte_on(
    ring: tuple[GroupSpec, Pair, Pair],
) -> None:
    group, (rank_0, from_0), (to_2, rank_2) = ring
    passed(rank_0, from_0, 12)
    traffic = Traffic(NodeId("node-1"))
    found = RingTraffic(group, 1, lambda node: traffic.way(node, "exchange"))
    for sizes in ((3_000_000, 1, 70_000, 0), (5, 0, 0, 1_000)):
        passed(from_0, rank_0, sizes[0])
        passed(rank_0, from_0, sizes[1])
        passed(to_2, rank_2, sizes[2])
        passed(rank_2, to_2, sizes[3])
        found.look()
    found.look()
    assert set(traffic.crossed()) == {
        Crossed("node-0", "exchange", 3_000_005, 12 + 1),
        Crossed("node-2", "exchange", 70_000, 1_000),
    }
    found.close()
    assert from_0.send(b"x") == to_2.send(b"x") == 1, "the sockets remain the ring's"


def test_ranks_of_one_node_have_no_link_to_count(ring: tuple[GroupSpec, Pair, Pair]) -> None:
    group, (rank_0, from_0), (to_2, rank_2) = ring
    traffic = Traffic(NodeId("node-0"))
    found = RingTraffic(group, 1, lambda node: traffic.way(node, "exchange"))
    passed(rank_0, from_0, 100)
    passed(to_2, rank_2, 40)
    found.look()
    found.close()
    assert traffic.crossed() == (Crossed("node-2", "exchange", 40, 0),)


def test_counts_of_macos_are_where_its_structure_has_them() -> None:
    # state and scales, 12 numbers up to rttvar, bits; packets, bytes, sent twice, packets, bytes
    told = struct.pack("=4B12II7Q", *range(4), *range(12), 7, 11, 5_000, 200, 12, 900, 13, 2)
    assert TCP_COUNTS["darwin"].size == len(told)
    assert TCP_COUNTS["darwin"].read(told) == (4_800, 900)


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_system_that_tells_less_is_not_believed(system: str) -> None:
    counts = TCP_COUNTS[system]
    assert counts.read(bytes(counts.size)) == (0, 0)
    assert counts.read(bytes(72)) is None
