"""Another user of the machine commands nothing and reads nothing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bus.wire.codec import Envelope, encode
from bus.wire.ids import Boot, CommandId, InstanceId, NodeId
from bus.wire.messages.commands import DeleteInstance
from bus.wire.messages.control import AskSnapshot
from bus.wire.messages.wire import Message
from tests.harness import stranger
from tests.harness.nodes import Node, eventually

NOBODY = 65534


def listening(node: Node) -> list[int]:
    """Return the TCP ports of a node but that of HTTP."""
    found: set[int] = set()
    for process in node.all_processes():
        with contextlib.suppress(psutil.Error):
            for one in process.net_connections(kind="tcp"):
                if one.status == psutil.CONN_LISTEN:
                    found.add(one.laddr.port)
    return sorted(found - {node.base_port})


def ask_as_another_user(ports: list[int], *messages: Message) -> dict[str, Any]:
    """Return what each port says to another user of this machine who has no key."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    lines = [
        encode(Envelope(NodeId("stranger"), "p", Boot("b"), number, message)).hex()
        for number, message in enumerate(messages)
    ]
    done = subprocess.run(
        [sys.executable, "-I", stranger.__file__, str(NOBODY), *map(str, ports)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def test_no_port_but_http_answers_another_user(node: Node) -> None:
    eventually(node.ready, 60, "ready")
    ports = listening(node)
    assert len(ports) >= 6, ports
    instance = next(iter(node.state()["instances"]))
    found = ask_as_another_user(
        ports,
        AskSnapshot(),
        DeleteInstance(command_id=CommandId("cmd-x"), instance=InstanceId(instance)),
    )
    print(found)
    answered = {port: told for port, told in found.items() if told["said"]}
    assert not answered, f"these ports answer a stranger: {answered}"
    assert "NULL" not in {told["mechanism"] for told in found.values()}
    assert instance in node.state()["instances"]
    assert node.chat("Hello", max_tokens=2).status_code == 200


def test_megabytes_of_nothing_cost_a_stranger_s_node_no_memory(node: Node) -> None:
    eventually(node.ready, 60, "ready")
    master = psutil.Process(node.pid("master"))
    before = master.memory_info().rss
    nothing = b"\xdc\xff\xff" + b"\x90" * 0xFFFF
    envelope = b"\x97\x01\xa1x\xa1n\xa1p\xa1b\x01" + b"\xdc\x00\x40" + nothing * 64
    with socket.create_connection(("127.0.0.1", node.base_port + 3)) as link:
        link.sendall(stranger.GREETING)
        ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
        link.sendall(b"\x04" + bytes([len(ready)]) + ready)
        with contextlib.suppress(OSError):
            link.sendall(b"\x02" + len(envelope).to_bytes(8, "big") + envelope)
        link.settimeout(1.0)
        with contextlib.suppress(OSError):
            while link.recv(4096):
                pass
    most = max(before, _peak(master))
    print(f"master: {before >> 20} MiB before, at most {most >> 20} MiB")
    assert most - before < 32 << 20


def _peak(process: psutil.Process) -> int:
    """Return the most memory that a process ever had resident."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")
