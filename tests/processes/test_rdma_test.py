"""`shoal rdma-test` between two real nodes: what it finds, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.clusters import Cluster
from tests.harness.nodes import Node, eventually, kill, typed

pytestmark = pytest.mark.slow

SMALL = ("--quick", "--memory", "320", "--json")


@pytest.fixture(scope="module")
def cluster(shared_pair: Cluster) -> Iterator[Cluster]:
    yield shared_pair
    shared_pair.clear()


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    """No test in the state and no runner's process, on any node."""
    yield
    eventually(lambda: not any(runners(node) for node in cluster.nodes), 30, "no runner is left")
    eventually(lambda: not open_tests(cluster.nodes[0]), 30, "no test is left")


def runners(node: Node) -> dict[str, int]:
    return {name: pid for name, pid in node.processes().items() if name.startswith("runner:")}


def open_tests(node: Node) -> list[str]:
    found = node.state()["instances"].values()
    return [one["instance"] for one in found if one["test"] and one["status"] != "failed"]


@contextlib.contextmanager
def endless(node: Node) -> Iterator[subprocess.Popen[str]]:
    """The command in the foreground, in a test that would take minutes."""
    process = typed(node, "rdma-test", "--stress", "--json")
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready_test(node: Node) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        instances = node.state()["instances"].values()
        return next((one for one in instances if one["test"] and one["status"] == "ready"), None)

    return eventually(found, 60, "a test runs")


def test_two_nodes_find_every_element_right(cluster: Cluster) -> None:
    done = cluster.nodes[1].shoal("rdma-test", *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr + cluster.nodes[1].logs()
    found = json.loads(done.stdout)
    assert found["passed"] and found["status"] == "done" and found["error"] is None
    report = found["report"]
    assert report["backend"] == "ring" and report["wrong"] == []
    assert {one["node"] for one in report["ranks"]} == {n.node_id() for n in cluster.nodes}
    assert [one["skipped"] for one in report["sizes"]] == [False, False, False, True]
    assert all(one["bytes_per_s"] > 0 for one in report["sizes"] if not one["skipped"])
    assert report["beside"] == []


@pytest.mark.proof
def test_ranks_are_in_the_order_of_the_nodes_named_and_a_model_beside_is_told_of(
    cluster: Cluster,
) -> None:
    model = cluster.place()
    order = [node.node_id() for node in reversed(cluster.nodes)]
    names = ",".join(order)
    done = cluster.nodes[0].shoal("rdma-test", *SMALL, "--nodes", names)
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert [one["node"] for one in found["report"]["ranks"]] == order
    assert found["report"]["beside"] == [f"shoal-tiny ({model['instance']})"]
    assert cluster.nodes[0].chat("list the integers from 1 to 3").status_code == 200
    assert cluster.nodes[0].state()["instances"][model["instance"]]["generation"] == 1
    cluster.nodes[0].http.delete(f"/instance/{model['instance']}")


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_a_whole_stress_test_runs_to_its_end(cluster: Cluster) -> None:
    done = cluster.nodes[0].shoal("rdma-test", "--stress", "--json", timeout=3600.0)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)["report"]
    assert report["passed"] and report["skipped"] == 0 and report["bandwidth_verdict"]
    assert [one["bytes"] for one in report["sizes"]][-1] == 512 << 20


def test_a_rank_that_is_killed_ends_the_test_and_is_named(cluster: Cluster) -> None:
    with endless(cluster.nodes[0]) as command:
        test = ready_test(cluster.nodes[0])
        (second,) = [one for one in test["ready"] if one["rank"] == 1]
        kill(second["pid"])
        out, said = command.communicate(timeout=60)
        assert command.returncode == 1, out + said
        error = json.loads(out)["error"]
        assert (error["code"], error["rank"], error["node"]) == ("rank_lost", 1, second["node"])


@pytest.mark.proof
def test_one_test_at_a_time_and_an_interrupted_command_ends_its_own(cluster: Cluster) -> None:
    with endless(cluster.nodes[1]) as command:
        test = ready_test(cluster.nodes[0])
        answer = cluster.nodes[0].http.post("/rdma-test", json={})
        assert answer.status_code == 409
        assert test["instance"] in answer.json()["error"]["message"]
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=60)
        assert command.returncode == 130


def test_one_node_alone_is_refused_for_it_needs_two(cluster: Cluster) -> None:
    done = cluster.nodes[0].shoal("rdma-test", "--quick", "--nodes", cluster.nodes[0].node_id())
    assert done.returncode == 1
    assert "at least two nodes" in done.stderr
