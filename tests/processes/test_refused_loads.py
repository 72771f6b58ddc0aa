"""Three real nodes, one of which cannot load what was placed on it: memory that is gone by then has
the model placed over one node more, a disk that is full has it placed without that node.

The workers stand still while a model is placed, and go on when its node has changed: so that what
they find is never what the holder knew.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.closed_loops import ask, tiny_models
from tests.harness.clusters import Cluster
from tests.harness.nodes import Node, eventually, kill
from tests.harness.small_disks import needs_mounts, remounted, small_disk
from tests.harness.told_memory import ToldMemory, needs_told_memory
from worker.machine.node_card import FRESH_READING_S

pytestmark = [pytest.mark.nodes, pytest.mark.slow, pytest.mark.timeout(600), needs_mounts]

GB = 10**9
TOTAL_BYTES, LOW_BYTES = 4 * GB, GB // 4
LONG_TOKENS = 65_536
"""A context of so many tokens takes some 0.8 GB whole, and 0.5 GB in each of two halves."""
DISK, FULL_DISK = "1500m", "16m"
"""Of which 1 GiB is to stay free."""
LEAST = {"SHOAL_RUNNER__MAX_ROWS": "1", "SHOAL_RUNNER__PREFIX_CACHE_BYTES": "0"}


@contextmanager
def standing_still(cluster: Cluster, service: str = "worker") -> Iterator[None]:
    """No node's process of this name acts as long as the block lasts."""
    pids = [node.pid(service) for node in cluster.nodes]
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            kill(pid, signal.SIGCONT)


def placed(node: Node, **fields: Any) -> dict[str, Any]:
    """Place a model; return its copy, which nothing loads yet."""
    asked = node.http.post("/place_instance", json={"model": "long", **fields})
    assert asked.status_code == 200, asked.text
    name = asked.json()["instance"]
    return eventually(lambda: node.state()["instances"].get(name), 30, "it is placed")


def reading(asker: Node, node: Node) -> dict[str, Any]:
    """What is told of a node's memory and disk."""
    return asker.http.get("/state").json()["telemetry"]["nodes"][node.node_id()]


def ready_elsewhere(asker: Node, first: str) -> dict[str, Any]:
    """The copy that took the place of the first one, when it is ready."""

    def found() -> dict[str, Any] | None:
        copies = asker.state()["instances"]
        others = [one for name, one in copies.items() if name != first]
        return next((one for one in others if one["status"] == "ready"), None)

    return eventually(found, 120, "it is ready elsewhere")


def refusals(node: Node) -> list[dict[str, Any]]:
    told = node.http.get("/events?limit=500").json()["events"]
    return [one for one in told if one["kind"] == "load_refused"]


@pytest.mark.proof
def test_a_load_that_is_refused_for_memory_is_placed_over_one_node_more(tmp_path: Path) -> None:
    needs_told_memory()
    folder = tiny_models(tmp_path / "models", ("long",), LONG_TOKENS)
    cluster = Cluster(3, SHOAL_MODEL_FOLDERS=folder, **LEAST)
    memory: dict[str, ToldMemory] = {}
    for number, node in enumerate(cluster.nodes):
        memory[node.url] = told = ToldMemory(tmp_path / f"meminfo-{number}", TOTAL_BYTES)
        node.inside = told.inside
    try:
        cluster.up()
        asker = cluster.nodes[0]
        with ExitStack() as still:
            with standing_still(cluster, "telemetry"):
                time.sleep(FRESH_READING_S + 0.5)  # what workers have heard is old by now
                still.enter_context(standing_still(cluster))
                first = placed(asker, context_tokens=LONG_TOKENS)
                (shard,) = first["shards"]
                short = cluster.by_id(shard["node"])
                memory[short.url].tell(LOW_BYTES)
            eventually(
                lambda: reading(asker, short)["memory_available_bytes"] < 2 * LOW_BYTES,
                30,
                "it is known that there is less",
            )
        again = ready_elsewhere(asker, first["instance"])
        where = {shard["node"] for shard in again["shards"]}
        assert len(where) == 2 and short.node_id() not in where, again["shards"]
        assert again["context_tokens"] >= LONG_TOKENS, "under the same conditions"
        (refused,) = refusals(asker)
        assert refused["about"]["node"] == short.node_id()
        assert "0.25 GB are free now" in refused["why"], refused
        answer = ask(asker, "long")
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 8
    finally:
        cluster.close()


@pytest.mark.proof
def test_a_rank_whose_disk_is_full_has_the_model_placed_without_its_node(tmp_path: Path) -> None:
    folder = tiny_models(tmp_path / "models", ("long",))
    cluster = Cluster(3, **LEAST)
    cluster.nodes[0].env["SHOAL_MODEL_FOLDERS"] = folder
    with ExitStack() as disks:
        disks.callback(cluster.close)  # last: what is mounted cannot be removed
        for node in cluster.nodes[1:]:
            data = node.home / "data"
            data.mkdir(parents=True)
            disks.enter_context(small_disk(data, DISK))
        cluster.up()
        asker = cluster.nodes[0]
        with standing_still(cluster):
            first = placed(asker, min_nodes=2)
            where = {shard["node"] for shard in first["shards"]}
            assert len(where) == 2 and asker.node_id() in where, first["shards"]
            full = next(node for node in cluster.nodes[1:] if node.node_id() in where)
            resize(full.home / "data", FULL_DISK)
            eventually(
                lambda: reading(asker, full)["disk_free_bytes"] < 1 << 30, 60, "it is known full"
            )
        again = ready_elsewhere(asker, first["instance"])
        others = {node.node_id() for node in cluster.nodes if node is not full}
        assert {shard["node"] for shard in again["shards"]} == others, again["shards"]
        (refused,) = refusals(asker)
        assert refused["about"]["node"] == full.node_id()
        assert "not enough disk space" in refused["why"], refused
        answer = ask(asker, "long")
        assert answer.status_code == 200, answer.text
        resize(full.home / "data", DISK)


def resize(disk: Path, size: str) -> None:
    """Give a small disk another size, while it is in use."""
    remounted(disk, f"size={size}")
