from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from runner.mlx.ranks.ring_wait import RingWait

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """(ours, theirs), connected over loopback; both ends are in this process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with closing(ours), closing(theirs):
        yield ours, theirs


def test_it_rings_for_bytes_and_for_an_end_and_not_before(pair: Pair) -> None:
    ours, theirs = pair
    bell = RingWait([ours.fileno()])
    assert not bell.wait(0.0)
    theirs.send(b"x")
    assert bell.wait(10.0)
    ours.recv(1)
    assert not bell.wait(0.0)
    theirs.close()
    assert bell.wait(10.0)


def test_a_socket_that_was_closed_rings_rather_than_keeping_anybody_waiting(pair: Pair) -> None:
    ours, _ = pair
    bell = RingWait([ours.fileno()])
    ours.close()
    assert bell.wait(10.0)
