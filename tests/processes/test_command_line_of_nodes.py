"""Whose node the command line talks to, what it says of it, and the lines that `up` prints."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import zmq

from bus.process.supervisor import Supervisor
from conf.settings import load_settings
from tests.harness.node_server import instance, serving
from tests.harness.nodes import Node, eventually, kill, running_node, shoal
from tests.processes.test_command_line import told


class Desk:
    """A node, n1, that holds the model m, and the paths that it was asked for to change it."""

    def __init__(self) -> None:
        self.loaded = [instance("m")]
        self.changes: list[str] = []

    def answer(self, method: str, path: str, _body: dict[str, Any]) -> Any:
        if path == "/health":
            return 200, {"status": "ok", "node": "n1"}
        if method != "GET":
            self.changes.append(f"{method} {path}")
            self.loaded.clear()
        if path == "/place_instance":
            return 200, {"model": "m", "instance": "inst-m"}
        return 200, told(1, *self.loaded)


def of_home(home: Path, url: str, *words: str) -> Any:
    """Run a verb of `home`, whose settings name the port at `url`."""
    env = {"SHOAL_HOME": str(home), "SHOAL_HTTP_PORT": str(urlsplit(url).port)}
    return shoal(*words, env=env)


@pytest.mark.parametrize("words", [("stop", "m"), ("load", "m"), ("nodes",)])
@pytest.mark.parametrize("was_up", [False, True], ids=["no such home", "a home that is down"])
def test_a_home_without_a_node_reaches_no_other_homes_node(
    tmp_path: Path, words: tuple[str, ...], was_up: bool
) -> None:
    desk, state = Desk(), tmp_path / "home" / "state"
    if was_up:
        state.mkdir(parents=True)
        (state / "node-id").write_text("n2\n")
    with serving(desk.answer) as url:
        found = of_home(tmp_path / "home", url, *words)
    assert found.returncode == 3, (found.returncode, found.stdout, found.stderr)
    assert desk.changes == []
    said = found.stderr.replace("\n", " ")
    assert str(tmp_path / "home") in said and (not was_up or "n1" in said)


@pytest.fixture(scope="module")
def printed() -> Iterator[tuple[Node, list[str]]]:
    """A node, and the lines to copy that its `shoal up` printed."""
    node = Node()
    try:
        done = node.shoal("up", "--base-port", str(node.base_port))
        assert done.returncode == 0, done.stderr
        yield node, [line[2:] for line in done.stderr.splitlines() if line.startswith("  ")]
    finally:
        node.close()


def test_up_prints_three_lines_that_work_as_printed_also_after_a_typo_in_the_settings(
    printed: tuple[Node, list[str]],
) -> None:
    node, lines = printed
    assert len(lines) == 3, f"three lines to copy, not {lines}"
    talk, ask = (_typed(node, line) for line in lines[:2])
    assert talk.returncode == 0 and talk.stdout.strip(), talk.stderr
    assert ask.returncode == 0 and '"choices"' in ask.stdout, ask.stdout + ask.stderr
    _without_its_api(node)
    config = node.home / "config" / "shoal.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("keep_alive_s = 300\nslotz = 3\n")
    try:
        _in_hand_despite(config, node)
        stop = _typed(node, lines[2])
        assert stop.returncode == 0 and not node.all_processes(), stop.stderr
        again = node.shoal("up")
        assert again.returncode == 1 and f"{config}, line 2" in again.stderr.replace("\n", " ")
    finally:
        config.unlink()


def _in_hand_despite(config: Path, node: Node) -> None:
    """Verbs work on a running node although its settings cannot be read any more."""
    for words in (("status",), ("ps",), ("logs",), ("config", "show"), ("nodes",)):
        found = node.shoal(*words)
        assert found.returncode == 0, (words, found.stderr)
        said = found.stderr.replace("\n", " ")
        assert f"{config}, line 2" in said and "did you mean slots" in said, said
    checks = json.loads(node.shoal("doctor", "--json").stdout)["checks"]
    settings = next(one for one in checks if one["name"] == "settings")
    assert settings["level"] == "error" and "line 2" in settings["found"]


def _typed(node: Node, line: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a line; what is said to the model follows by standard input."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=tempfile.gettempdir(),
        input="hello\n",
        env={**os.environ, **node.env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _without_its_api(node: Node) -> None:
    """Its status is told, and ends with 3, while its API does not answer."""
    supervisor = Supervisor(load_settings(home=node.home).endpoints.supervisor)
    supervisor.stop("gateway")
    found = node.shoal("status")
    assert found.returncode == 3, found.stdout
    assert "bus" in found.stdout and "no node answers" in " ".join(found.stdout.split())
    supervisor.start("gateway")
    eventually(node.ready, 60, "the node serves again")


@pytest.mark.proof
def test_a_taken_port_of_the_cluster_is_said_before_a_node_starts_on_it() -> None:
    node = Node()
    try:
        with socket.create_server(("127.0.0.1", node.base_port + 4)):
            found = node.shoal("up", "--base-port", str(node.base_port), "--json")
        assert found.returncode == 1, found.stdout
        error = json.loads(found.stdout)["error"]
        assert f"port {node.base_port + 4} is in use by" in error["message"]
        proposed = re.search(r"--base-port (\d+)", error["remedy"])
        assert proposed and int(proposed[1]) != node.base_port, error["remedy"]
        assert node.all_processes() == []
    finally:
        node.close()


@pytest.mark.proof
def test_up_beside_another_node_says_whose_the_port_is_and_where_to_go(node: Node) -> None:
    other = Node()
    try:
        found = other.shoal("up", "--base-port", str(node.base_port), "--json")
        error = json.loads(found.stdout)["error"]
        assert found.returncode == 1 and node.node_id() in error["message"], error
        assert str(node.home / "state") in error["message"]
        assert re.search(r"--base-port \d+", error["remedy"]), error["remedy"]
        assert other.all_processes() == []
    finally:
        other.close()


@pytest.mark.proof
def test_flags_that_a_running_node_does_not_take_are_said_with_what_to_type(node: Node) -> None:
    same = node.shoal("up", "--base-port", str(node.base_port))
    assert same.returncode == 0 and "down" not in same.stdout + same.stderr, same.stderr
    found = node.shoal("up", "--http-port", "9999", "--peers", "127.0.0.1:9")
    said = " ".join((found.stdout + found.stderr).split())
    assert "--http-port 9999 is not taken" in said and "--peers 127.0.0.1:9 is not taken" in said
    again = f"shoal up --base-port {node.base_port} --http-port 9999 --peers 127.0.0.1:9"
    home = f"--home {node.home}"
    assert f"`shoal down {home}`, then `{again} {home}`" in said


@pytest.fixture
def own() -> Iterator[Node]:
    with running_node() as made:
        yield made


@pytest.mark.proof
def test_a_port_that_another_took_is_found_by_health_and_doctor(own: Node) -> None:
    node = own
    port = node.base_port + 4
    with zmq.Context() as context, context.socket(zmq.ROUTER) as thief:
        kill(node.pid("bus"))
        eventually(lambda: _bound(thief, port), 5, "the port is free for a moment")
        eventually(lambda: node.processes().get("bus"), 20, "the bus is back")
        eventually(
            lambda: "port_taken" in _health(node), 60, "health finds that the port is another's"
        )
        doctor = node.shoal("doctor", "--json")
        checks = {one["name"]: one for one in json.loads(doctor.stdout)["checks"]}
        assert checks["cluster port"]["level"] == "error" and doctor.returncode == 1
        assert str(port) in checks["cluster port"]["found"]
        assert checks["HTTP API"]["level"] == "ok"
        thief.close(0)
        eventually(lambda: "port_taken" not in _health(node), 60, "health sees that it is back")


def _bound(socket: zmq.Socket[bytes], port: int) -> bool:
    try:
        socket.bind(f"tcp://127.0.0.1:{port}")
    except zmq.ZMQError:
        return False
    return True


def _health(node: Node) -> str:
    return json.dumps(node.http.get("/state").json()["nodeHealth"])
