"""Clusters of two nodes, one of which is not fit to serve a model: it has no MLX, its disk is full,
or its runners are killed while they load. The other node serves within the bound, whichever is
asked, and both say why the first does not.

The unfit node has more memory, so that it is chosen first where the planner cannot know better.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.closed_loops import ask, tiny_models
from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, Node, answered, eventually, kill
from tests.harness.small_disks import filled, needs_mounts, remounted, small_disk
from tests.harness.unfit_nodes import killed_at_load, without_mlx
from tests.processes.conftest import Ledger

pytestmark = [pytest.mark.proof, pytest.mark.nodes, pytest.mark.slow, pytest.mark.timeout(600)]

BOUND_S = 10.0
LESS_BYTES, ROOM_FOR_ONE_BYTES = "3000000000", "600000000"
"""Of which models may take three quarters; the bundled one takes 0.31 GB."""
DISK, FULL_DISK = "1500m", "16m"
"""Of which 1 GiB is to stay free."""
WHOLE_DISK, FULL_HOME = "6g", "2m"
"""A journal wants 2 GiB."""
FULL = "the disk with models and journals has 0.0 GB free"
NO_MLX = "cannot run models: mlx is not installed there"


@dataclass
class Pair:
    """Two nodes that know each other. `seconds` is the longest that an answer took from a question
    with nothing loaded."""

    cluster: Cluster
    unfit: Node
    fit: Node
    seconds: float = 0.0

    def serves(self, asked: Node, model: str = MODEL) -> httpx.Response:
        """The fit node's answer to a question at either."""
        name, load = asked.env["SHOAL_NODE_NAME"], os.getloadavg()[0]
        at = time.monotonic()
        answer = ask(asked, model)
        seconds = time.monotonic() - at
        print(f"asked at the {name} node: {seconds:.2f} s, at a load average of {load:.1f}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 8
        self.seconds = max(self.seconds, seconds)
        return answer

    def seats(self, model: str = MODEL) -> list[str]:
        """The nodes that hold the model."""
        copies = [one for one in self.fit.state()["instances"].values() if one["model"] == model]
        return [shard["node"] for one in copies for shard in one["shards"]]

    def note(self, ledger: Ledger, fault: str, said: str) -> None:
        """Hold the seconds to the bound, beside the words of either node."""
        saw = f"answers; {said}"
        ledger(fault, saw=saw, seconds=self.seconds, bound_s=BOUND_S, reloaded=0)


@contextmanager
def pair(
    unfit: dict[str, str], fit: dict[str, str] | None = None, *, disk: tuple[str, str] = ("", "")
) -> Generator[Pair]:
    """A cluster that has formed. `disk`: a folder of the unfit node's home that is a disk of its
    own, and its size."""
    cluster = Cluster(2)
    first, second = cluster.nodes
    first.env |= {"SHOAL_NODE_NAME": "unfit", **unfit}
    second.env |= {"SHOAL_NODE_NAME": "fit", "SHOAL_MEMORY_BYTES": LESS_BYTES, **(fit or {})}
    with ExitStack() as stack:
        stack.callback(cluster.close)  # last: what is mounted cannot be removed
        folder, size = disk
        if size:
            (first.home / folder).mkdir(parents=True)
            stack.enter_context(small_disk(first.home / folder, size))
        cluster.up()
        eventually(lambda: len(readings(second)) == 2, 30, "both nodes are measured")
        yield Pair(cluster, first, second)


def readings(asked: Node) -> dict[str, Any]:
    """What is told of each node's memory and disk."""
    return asked.http.get("/state").json()["telemetry"]["nodes"]


def why(asked: Node, model: str = MODEL) -> str:
    """Why the unfit node does not get a model, as a node says it."""
    found = asked.http.get(f"/instance/previews?model={model}").json()
    return found["blocked"].get("unfit", "")


def printed_why(asked: Node, model: str = MODEL) -> str:
    """The same on the command line."""
    said = asked.shoal("place", model, "--dry-run")
    lines = f"{said.stdout}\n{said.stderr}".splitlines()
    return next((one for one in lines if "unfit: " in one), "").strip()


def health(asked: Node) -> str:
    return "; ".join(asked.http.get("/health").json()["problems"])


def happened(asked: Node, kind: str) -> list[dict[str, Any]]:
    told = asked.http.get("/events?limit=500").json()["events"]
    return [one for one in told if one["kind"] == kind]


def test_a_node_without_mlx_is_passed_by(tmp_path: Path, ledger: Ledger) -> None:
    with pair(without_mlx(tmp_path / "patch")) as two:
        for asked in (two.unfit, two.fit):
            two.serves(asked)
            assert two.seats() == [two.fit.node_id()]
            assert why(asked).startswith(NO_MLX), why(asked)
            two.cluster.clear()
        assert f"this node {NO_MLX}" in health(two.unfit) and health(two.fit) == ""
        said = printed_why(two.fit)
        assert f"unfit: {NO_MLX}" in said
        two.note(ledger, "a node has no MLX", said)


@needs_mounts
def test_a_node_whose_disk_has_no_room_for_a_model_is_passed_by(
    tmp_path: Path, ledger: Ledger
) -> None:
    models = {"SHOAL_MODEL_FOLDERS": tiny_models(tmp_path / "models", ("far",))}
    with pair({}, models, disk=("data", DISK)) as two:
        remounted(two.unfit.home / "data", f"size={FULL_DISK}")
        answered(lambda: why(two.fit, "far"), bool, "the disk is known to be full")
        for asked in (two.unfit, two.fit):
            two.serves(asked, "far")
            assert two.seats("far") == [two.fit.node_id()]
            assert why(asked, "far") == "lacks disk space for the weights"
            two.cluster.clear()
        assert FULL in health(two.unfit) and health(two.fit) == ""
        two.note(ledger, "a disk has no room for a model", printed_why(two.fit, "far"))


@needs_mounts
def test_a_load_that_is_refused_for_a_full_disk_is_made_on_the_other_node(
    tmp_path: Path, ledger: Ledger
) -> None:
    """Only the unfit node has free memory, and nobody has measured that its disk is full."""
    models = {"SHOAL_MODEL_FOLDERS": tiny_models(tmp_path / "models", ("far",))}
    room = {"SHOAL_MEMORY_BYTES": ROOM_FOR_ONE_BYTES}
    with pair({}, models | room, disk=("data", DISK)) as two:
        two.cluster.place(excluded_nodes=[two.unfit.node_id()])
        kill(telemetry := two.unfit.pid("telemetry"), signal.SIGSTOP)
        remounted(two.unfit.home / "data", f"size={FULL_DISK}")
        two.serves(two.unfit, "far")
        kill(telemetry, signal.SIGCONT)
        assert two.seats("far") == [two.fit.node_id()]
        (refused,) = happened(two.fit, "load_refused")
        assert refused["about"]["node"] == two.unfit.node_id()
        assert "not enough disk space" in refused["why"], refused
        answered(lambda: why(two.unfit, "far"), bool, "the disk is known to be full")
        assert why(two.unfit, "far") == "lacks disk space for the weights"
        two.note(ledger, "a load is refused for a full disk", refused["why"])


@needs_mounts
def test_a_node_that_can_write_nothing_serves_what_it_has(ledger: Ledger) -> None:
    """Its logs, records and journal are on the full disk. It has the model's files already, so
    nothing has to move."""
    with pair({}, disk=("", WHOLE_DISK)) as two:
        remounted(two.unfit.home, f"size={FULL_HOME}")
        filled(two.unfit.home)
        for asked in (two.unfit, two.fit):
            two.serves(asked)
            two.cluster.clear()
        said = answered(
            lambda: health(two.unfit), lambda text: "cannot write records" in text, "told"
        )
        assert FULL in said
        assert f"error: unfit: {FULL}" in two.fit.shoal("status").stdout, "by its name"
        two.note(ledger, "a node can write nothing", said)


def test_a_model_whose_runner_is_killed_while_it_loads_is_served_by_the_other_node(
    tmp_path: Path, ledger: Ledger
) -> None:
    with pair(killed_at_load(tmp_path / "patch")) as two:
        two.serves(two.unfit)
        assert two.seats() == [two.fit.node_id()]
        (ended,) = happened(two.fit, "runner_ended")
        assert ended["about"]["node"] == two.unfit.node_id(), "it was tried there, and once"
        (failed,) = happened(two.fit, "instance_failed")
        assert "it failed on unfit and is placed on other nodes" in failed["why"], failed
        two.cluster.clear()
        two.serves(two.fit)
        assert two.seats() == [two.fit.node_id()]
        for asked in (two.unfit, two.fit):
            said = why(asked)
            assert said.startswith("is in cooldown for ") and "was killed by a signal" in said, said
        two.note(ledger, "runners are killed while they load", printed_why(two.fit))
