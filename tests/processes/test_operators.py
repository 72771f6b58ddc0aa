"""What an operator is told of a live node, and a node that a service manager would hold."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conf.settings import load_settings
from tests.harness.nodes import ROOT, Node, eventually, kill


def test_a_live_node_tells_what_it_is_and_is_aligned_with_itself(node: Node) -> None:
    done = node.shoal("cluster-info", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["verdict"], said["well"]) == (0, "aligned", True)
    [me] = said["nodes"]
    assert me["node"] == node.node_id() and me["holder"]
    assert me["facts"]["launch"] == "shoal up"
    assert all(me["facts"][name] for name in ("shoal", "mlx", "mlx_lm", "python", "os", "arch"))


def test_the_doctor_finds_a_live_nodes_door_open(node: Node) -> None:
    said = json.loads(node.shoal("doctor", "--json").stdout)
    checks = {one["name"]: one for one in said["checks"]}
    for name in ("addresses", "cluster key", "cluster port"):
        assert checks[name]["level"] == "ok", checks[name]
    assert str(node.base_port + 4) in checks["cluster port"]["found"]


@pytest.mark.skipif(sys.platform != "linux", reason="macOS executes every service")
def test_services_are_forked_from_supervisord_and_started_anew_by_supervisorctl(node: Node) -> None:
    supervisord = int((node.home / "state" / "supervisord.pid").read_text())
    before = node.pid("telemetry")
    conf = str(load_settings(home=node.home).paths.supervisord_conf)
    words = ("-m", "supervisor.supervisorctl", "-c", conf, "restart", "telemetry")
    done = subprocess.run(
        [sys.executable, "-P", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "telemetry: stopped\ntelemetry: started\n")
    pid = node.pid("telemetry")
    assert pid != before and psutil.Process(pid).ppid() == supervisord
    eventually(lambda: psutil.Process(pid).cmdline()[0].startswith("shoal telemetry"), 30, "title")
    assert not [one for one in node.log_lines("telemetry") if "from the disk" in one["message"]]
    assert first_mapping(pid) == first_mapping(supervisord), "it was executed"
    eventually(
        lambda: node.http.get("/v1/diagnostics/node/processes/telemetry/stacks").is_success,
        30,
        "answers",
    )


def first_mapping(pid: int) -> str:
    """Where the program lies in a process's memory: at random, but for its forks."""
    return Path(f"/proc/{pid}/maps").read_text().split("-")[0]


@pytest.fixture
def held() -> Iterator[Node]:
    node = Node(SHOAL_LAUNCHED_BY="systemd")
    yield node
    node.close()


@pytest.mark.proof
@pytest.mark.slow
def test_a_held_node_outlives_what_is_late_and_fails_with_its_supervisord(held: Node) -> None:
    words = ("up", "--foreground", "--stay", "--wait", "1", "--base-port", str(held.base_port))
    up = subprocess.Popen(
        [sys.executable, "-P", "-m", "gateway.cli.app", *words],
        env={**os.environ, **held.env, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(held.ready, 90, "the node serves, late as it was")
        assert up.poll() is None
        facts = json.loads(held.shoal("cluster-info", "--json").stdout)["nodes"][0]["facts"]
        assert facts["launch"] == "systemd"
        kill(int((held.home / "state" / "supervisord.pid").read_text()))
        _, said = up.communicate(timeout=90)
        assert up.returncode == 1
        assert "supervisord exited unexpectedly (signal 9)" in said
        assert held.all_processes() == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            up.kill()
        up.wait()
