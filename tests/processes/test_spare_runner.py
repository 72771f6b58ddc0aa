"""A node keeps one runner started that has no model yet, and the next load takes it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import pytest

from tests.harness.nodes import Node, eventually, kill, running_node

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Start a node with nothing loaded and a spare runner."""
    with running_node(SHOAL_RUNNER__SPARE="true", SHOAL_PRELOAD="") as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_loaded(node: Node) -> Iterator[None]:
    """Leave nothing loaded for the next test, however this one ends."""
    yield
    if node.all_processes():
        for instance in node.state()["instances"]:
            node.http.delete(f"/instance/{instance}")


def runners(node: Node) -> set[int]:
    """Return the pids of all runner processes."""
    return {pid for name, pid in node.processes().items() if name.startswith("runner:")}


def spare(node: Node) -> int:
    """Wait for a spare runner where nothing is placed, and return its pid."""
    eventually(lambda: not node.state()["instances"], PATIENCE_S, "nothing is placed")
    (pid,) = eventually(lambda: runners(node), PATIENCE_S, "a spare runner")
    eventually(lambda: is_waiting(pid), PATIENCE_S, "it has come up, for a load to take")
    return pid


def is_waiting(pid: int) -> bool:
    """Whether a runner has imported what it needs and does nothing."""
    process = psutil.Process(pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(0.5)
    return before > 0.2 and sum(process.cpu_times()[:2]) - before < 0.1


def test_the_next_load_takes_the_spare_and_another_follows(node: Node) -> None:
    pid = spare(node)
    (line,) = [one for one in node.shoal("status").stdout.splitlines() if f" {pid} " in one]
    assert line.endswith("no model: it is loading one, or it is a spare runner"), line
    assert node.chat("Hello!").status_code == 200
    (instance,) = node.state()["instances"].values()
    assert [rank["pid"] for rank in instance["ready"]] == [pid]
    eventually(lambda: len(runners(node)) == 2, PATIENCE_S, "another spare runner")
    (line,) = [one for one in node.shoal("status").stdout.splitlines() if f" {pid} " in one]
    assert line.endswith(instance["model"]), line
    node.http.delete(f"/instance/{instance['instance']}")
    eventually(lambda: pid not in runners(node), PATIENCE_S, "the model has left")
    assert spare(node) != pid


def test_a_worker_that_starts_anew_keeps_the_spare(node: Node) -> None:
    pid = spare(node)
    old = node.pid("worker")
    kill(old)
    eventually(lambda: node.processes().get("worker", old) != old, PATIENCE_S, "another worker")
    assert node.chat("Hello!").status_code == 200
    (instance,) = node.state()["instances"].values()
    assert [rank["pid"] for rank in instance["ready"]] == [pid]
    node.http.delete(f"/instance/{instance['instance']}")
    eventually(lambda: pid not in runners(node), PATIENCE_S, "the model has left")


@pytest.mark.proof
def test_a_spare_that_is_killed_costs_nothing(node: Node) -> None:
    kill(spare(node))
    eventually(lambda: not runners(node), PATIENCE_S, "the spare is gone")
    assert node.chat("Hello!").status_code == 200, "a load starts a runner of its own"
    node.down()
    assert not node.all_processes()
