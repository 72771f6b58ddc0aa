"""A node that opens no port for HTTP: its owner reaches it by a socket, clients do not."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from conf.settings import load_settings
from tests.harness.nodes import MODEL, Node, shoal

FLAGS = ("--no-api", "--no-dashboard", "--offline", "--max-rows", "1", "--master-priority", "3")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    made = Node()
    try:
        done = made.shoal("up", "--base-port", str(made.base_port), "--log-level", "debug", *FLAGS)
        assert done.returncode == 0, done.stdout + done.stderr + made.logs()
        yield made
    finally:
        made.close()


def socket_of(node: Node) -> Path:
    return Path(load_settings(home=node.home).endpoints.http)


def test_nothing_listens_at_the_port_and_the_socket_is_its_owners(node: Node) -> None:
    with pytest.raises(httpx.ConnectError):
        node.http.get("/health")
    for one in node.all_processes():
        heard = [
            c.laddr.port for c in one.net_connections("inet") if c.status == psutil.CONN_LISTEN
        ]
        assert node.base_port not in heard
    path = socket_of(node)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_command_line_and_who_knows_the_socket_are_answered(node: Node) -> None:
    said = node.shoal("run", MODEL, "What is shoal?", "--temperature", "0")
    assert said.returncode == 0 and "machines" in said.stdout, said.stderr
    doctor = json.loads(node.shoal("doctor", "--json").stdout)
    found = {one["name"]: one for one in doctor["checks"]}
    assert found["port"]["level"] == found["HTTP API"]["level"] == "ok", found
    seen = node.shoal("clients", "--json")
    assert [one["client"] for one in json.loads(seen.stdout)["clients"]] == ["socket"], seen.stdout
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(socket_of(node))), base_url="http://localhost"
    ) as http:
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
        assert http.post("/v1/chat/completions", json=asked).status_code == 200
        assert http.get("/dashboard").status_code == 404
        unknown = http.request("DELETE", "/api/delete", json={"model": "nope"})
        assert unknown.status_code == 404, "its owner may, so that the model alone is missing"


@pytest.mark.proof
def test_each_flag_is_a_setting_that_a_restart_keeps(node: Node) -> None:
    shown = json.loads(node.shoal("config", "show", "--json").stdout)["settings"]
    wanted = {"api": False, "dashboard": False, "offline": True, "runner.max_rows": 1}
    wanted |= {"master_priority": 3, "log_level": "debug"}
    assert {key: shown[key] for key in wanted} == {
        key: {"value": value, "source": "shoal up"} for key, value in wanted.items()
    }
    again = node.shoal("up", "--api", "--max-rows", "2", "--online")
    assert again.returncode == 0
    assert "--api has no effect: the node runs with --no-api" in again.stderr
    assert "--max-rows 2 has no effect: the node runs with --max-rows 1" in again.stderr
    assert "--online has no effect: the node runs with --offline" in again.stderr
    address = f"unix://{socket_of(node)}"
    restarted = node.shoal("restart")
    assert restarted.returncode == 0 and address in restarted.stdout, restarted.stderr
    elsewhere = shoal("ps", "--url", address, "--json")
    assert elsewhere.returncode == 0, elsewhere.stderr
