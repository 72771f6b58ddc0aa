"""Whose connections are the user's own."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from gateway.cluster.own_peers import is_own_process

DIALS = 'exec 3<>"/dev/tcp/127.0.0.1/$0"; read -r -u 3'


def test_a_connection_of_this_user_is_known_by_both_its_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            host, own = client.getsockname()
            assert is_own_process(host, own, port)
            assert is_own_process(f"::ffff:{host}", own, port)
            assert not is_own_process("127.0.0.2", own, port), "another end of the same number"
            assert not is_own_process(host, own, port + 1), "a connection to another server"
        assert not is_own_process(host, own, port), "closed: its end may be anyone's next"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_a_connection_of_another_user_is_not_this_users() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = ["/bin/bash", "-c", DIALS, str(port)]
        with subprocess.Popen(command, user=65534, cwd="/", env={}) as stranger:
            try:
                server.settimeout(20)
                accepted, (host, end) = server.accept()
                with accepted:
                    assert not is_own_process(host, end, port)
            finally:
                stranger.kill()
