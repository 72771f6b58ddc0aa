"""Which process listens at which port: this one, on real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bus.process import ports
from bus.process.endpoints import host_here
from bus.process.ports import addresses_of, listening, port_owner


def test_a_port_is_listened_at_only_while_its_socket_listens() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        assert port not in listening(os.getpid())
        one.listen()
        assert port in listening(os.getpid())
    assert port not in listening(os.getpid())


def test_a_process_that_is_gone_listens_nowhere() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
        assert listening(ended.pid) == frozenset()


def test_a_port_of_a_node_is_told_with_the_node_that_has_it(tmp_path: Path) -> None:
    state, work = tmp_path / "state", tmp_path / "state" / "run"
    work.mkdir(parents=True)
    program = (
        "import socket; one = socket.create_server(('127.0.0.1', 0)); "
        "print(one.getsockname()[1], flush=True); one.accept()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=work, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        assert port in listening(holder.pid)
        owner = port_owner(port)
        assert owner is not None and f"pid {holder.pid}" in owner and "node" not in owner
        (state / "node-id").write_text("n0123456789\n")
        owner = port_owner(port)
        assert owner is not None and "node n0123456789" in owner and str(state) in owner
        holder.kill()


def test_localhost_stands_for_the_loopbacks_that_this_machine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert addresses_of("localhost") in (["127.0.0.1"], ["127.0.0.1", "::1"])
    assert addresses_of("127.0.0.1") == ["127.0.0.1"] and addresses_of("::") == ["::"]
    monkeypatch.setattr(ports, "LOOPBACKS", ("127.0.0.1", "2001:db8::1"))  # no machine has it
    assert addresses_of("localhost") == ["127.0.0.1"]
    assert host_here("localhost") == "127.0.0.1", "is reached where every machine has it"


def test_who_listens_at_another_address_does_not_take_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        assert port_owner(port, "127.0.0.1") is not None
        assert port_owner(port, "::1") is None
        assert port_owner(port) is not None
