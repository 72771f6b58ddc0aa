"""Runners die again and again under streams of all kinds, each of which says what it says
undisturbed (`make prove-resume`)."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.clusters import Cluster, running_cluster
from tests.harness.mixed_streams import KINDS, MixedStream, begun, check_same
from tests.harness.nodes import ROOT, Node, eventually, kill
from tests.processes.conftest import PROVING, results_folder

pytestmark = [pytest.mark.proof, pytest.mark.nodes, pytest.mark.timeout(7200)]

ROUNDS = 21 if PROVING else 1
"""Faults of each kind. Each meets a model of its own, for a model whose runners die pauses."""
FAULTS = ("SIGKILL", "SIGSTOP", "deleted")
SHAPES = ("replica", "alone", "pipeline")
MODELS = [f"model-{number:03}" for number in range(len(FAULTS) * len(SHAPES) * ROUNDS + 6)]
PATIENCE_S = 240.0
Streams = dict[str, MixedStream]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("models")
    left_out = shutil.ignore_patterns("make", "*.py")
    shutil.copytree(ROOT / "conf" / "tiny", folder / MODELS[0], ignore=left_out)
    for name in MODELS[1:]:
        shutil.copytree(folder / MODELS[0], folder / name, copy_function=os.link)
    with running_cluster(3, SHOAL_SETTLE_GRACE_S="35", SHOAL_MODEL_FOLDERS=str(folder)) as made:
        yield made


@pytest.fixture(scope="module")
def fresh() -> Callable[[], str]:
    """Return the name of a model that no test has used."""
    return functools.partial(next, iter(MODELS))


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, fresh: Callable[[], str]) -> Streams:
    name = fresh()
    cluster.place(name)
    streams = begun(cluster.nodes[0], *KINDS, model=name)
    for stream in streams.values():
        stream.wait(180)
        assert stream.error is None, stream.error
    return streams


def note(shape: str, fault: str, gaps: list[float]) -> float:
    """Print and keep the gaps that clients saw; return their 95th percentile."""
    gaps.sort()
    p95 = gaps[int(0.95 * (len(gaps) - 1) + 0.5)]
    figures = {"median_s": gaps[len(gaps) // 2], "p95_s": p95, "longest_s": gaps[-1]}
    rounded = {name: round(value, 2) for name, value in figures.items()}
    row = {"shape": shape, "fault": fault, "streams": len(gaps), **rounded}
    with open(results_folder() / "resume.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row))
    return p95


def strike(cluster: Cluster, placed: dict[str, Any], fault: str) -> None:
    """End a runner of the instance: the lead, or the last rank of a group."""
    name = placed["instance"]
    if fault == "deleted":
        assert cluster.nodes[0].http.delete(f"/instance/{name}").status_code in (200, 202)
        return
    ready = cluster.nodes[0].state()["instances"][name]["ready"]
    kill(max(ready, key=lambda one: one["rank"])["pid"], getattr(signal, fault))


def gaps_of(
    client: Node, undisturbed: Streams, model: str, after: int, hit: Callable[[], Any]
) -> list[float]:
    """Begin streams of all kinds, hit their runner after so many chunks, check what they say, and
    return the gaps of those that were open."""
    streams = begun(client, *KINDS, model=model)
    streams["text"].flowing(after)
    still_open = [kind for kind, stream in streams.items() if not stream.is_done]
    hit()
    check_same(streams, undisturbed)
    return [streams[kind].gap_s for kind in still_open]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_streams_of_all_kinds_survive(
    cluster: Cluster, undisturbed: Streams, fresh: Callable[[], str], shape: str, fault: str
) -> None:
    chance, client = random.Random(f"{shape} {fault}"), cluster.nodes[0]
    gaps: list[float] = []
    for _ in range(ROUNDS):
        cluster.clear()
        name = fresh()
        placed = cluster.place(name, min_nodes=2 if shape == "pipeline" else 1)
        if shape == "replica":
            cluster.place(name, excluded_nodes=[one["node"] for one in placed["shards"]])
        hit = functools.partial(strike, cluster, placed, fault)
        gaps += gaps_of(client, undisturbed, name, chance.randint(1, 120), hit)
    p95 = note(shape, fault, gaps)
    if (shape, fault) == ("replica", "SIGKILL") and PROVING:
        assert p95 <= 3.0


def test_a_lost_node_takes_no_stream_along(
    cluster: Cluster, undisturbed: Streams, fresh: Callable[[], str]
) -> None:
    gaps: list[float] = []
    for victim in cluster.nodes[1:] if PROVING else cluster.nodes[2:]:
        cluster.clear()
        name = fresh()
        cluster.place(name, excluded_nodes=[n.node_id() for n in cluster.nodes if n is not victim])
        gaps += gaps_of(cluster.nodes[0], undisturbed, name, 30, victim.kill)
        victim.up(PATIENCE_S)
        eventually(cluster.formed, PATIENCE_S, "the cluster is whole")
    note("one node", "killed node", gaps)
