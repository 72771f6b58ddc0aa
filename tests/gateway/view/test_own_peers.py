"""Whose the other end of a connection is."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from gateway.view import own_peers
from gateway.view.own_peers import End, user_of_end

DIALS = 'exec 3<>"/dev/tcp/127.0.0.1/$0"; read -r -u 3'
NOBODY = 65534
WAYS = {"asked": "_from_kernel", "in tables": "_in_tables", "of processes": "_is_of_own_processes"}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the ways before this one be none, as on a system that lacks them."""

    def lacks(client: End, server: End) -> int | None:
        raise OSError("not on this system")

    for name, function in WAYS.items():
        if name == request.param:
            break
        monkeypatch.setattr(own_peers, function, lacks)
    return request.param


def ends(connection: socket.socket) -> tuple[End, End]:
    return connection.getsockname()[:2], connection.getpeername()[:2]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_connection_of_this_user_is_known_by_both_its_ends(
    family: socket.AddressFamily, host: str
) -> None:
    with socket.create_server((host, 0), family=family) as server:
        with socket.create_connection(server.getsockname()[:2]) as client:
            own, other = ends(client)
            assert user_of_end(own, other) == os.getuid()
            assert user_of_end((own[0], 1), other) is None, "another end"
            assert user_of_end(own, (other[0], 1)) is None, "a connection to another server"
            client.shutdown(socket.SHUT_WR)
            assert user_of_end(own, other) == os.getuid(), "it still listens"
            accepted, _ = server.accept()
        with accepted:
            assert user_of_end(own, other) is None, "closed: its end may be anyone's next"
        assert user_of_end(other, own) is None, "who listens there did not connect"


@pytest.mark.usefixtures("way")
def test_an_address_of_ipv4_is_one_within_ipv6_too() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            own, other = ends(client)
            mapped = [(f"::ffff:{host}", number) for host, number in (own, other)]
            assert user_of_end(mapped[0], mapped[1]) == os.getuid()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_a_connection_of_another_user_is_not_this_users(way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = ["/bin/bash", "-c", DIALS, str(server.getsockname()[1])]
        with subprocess.Popen(command, user=NOBODY, cwd="/", env={}) as stranger:
            try:
                server.settimeout(20)
                accepted, end = server.accept()
                with accepted:
                    found = user_of_end(end, accepted.getsockname())
                    assert found == (None if way == "of processes" else NOBODY)
            finally:
                stranger.kill()
