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
SHAPES = ("replica", "alone", "pipeline", "tensor")
MODELS = [f"model-{number:03}" for number in range(len(FAULTS) * len(SHAPES) * ROUNDS + 8)]
PATIENCE_S = 240.0
ENDED = ("done", "completed", "incomplete", "failed", "cancelled")
COUNTING = [{"role": "user", "content": "List the integers from 1 to 60."}]
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
        split = {"min_nodes": 2, "sharding": shape} if shape in ("pipeline", "tensor") else {}
        placed = cluster.place(name, **split)
        if shape == "replica":
            cluster.place(name, excluded_nodes=[one["node"] for one in placed["shards"]])
        hit = functools.partial(strike, cluster, placed, fault)
        gaps += gaps_of(client, undisturbed, name, chance.randint(1, 120), hit)
    p95 = note(shape, fault, gaps)
    if shape == "replica" and PROVING:
        # a frozen runner is silent for 2 s before its requests leave it
        assert p95 <= (5.0 if fault == "SIGSTOP" else 3.0)


def test_requests_leave_a_group_that_stands_still(
    cluster: Cluster, undisturbed: Streams, fresh: Callable[[], str]
) -> None:
    """The lead of a group whose follower is frozen answers, but makes no progress."""
    gaps: list[float] = []
    for _ in range(2 if PROVING else 1):
        cluster.clear()
        name = fresh()
        placed = cluster.place(name, min_nodes=2, sharding="pipeline")
        cluster.place(name, excluded_nodes=[shard["node"] for shard in placed["shards"]])
        hit = functools.partial(strike, cluster, placed, "SIGSTOP")
        gaps += gaps_of(cluster.nodes[0], undisturbed, name, 30, hit)
    note("pipeline, replica", "SIGSTOP", gaps)


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


@pytest.mark.parametrize("kind", ["background", "job"])
def test_answers_without_a_client_survive(
    cluster: Cluster, fresh: Callable[[], str], kind: str
) -> None:
    """A background response and a job give the text of the same request with a client."""
    cluster.clear()
    name, node = fresh(), cluster.nodes[0]
    placed = cluster.place(name)
    asked: dict[str, Any] = {"model": name, "temperature": 0}
    if kind == "job":
        asked |= {"messages": COUNTING, "max_tokens": 300, "ignore_eos": True}
        made = node.http.post("/v1/jobs", json={"path": "/v1/chat/completions", "body": asked})
        path = f"/v1/jobs/{made.json()['id']}"
    else:
        asked |= {"input": COUNTING, "max_output_tokens": 300}
        made = node.http.post("/v1/responses", json={**asked, "background": True})
        path = f"/v1/responses/{made.json()['id']}"
    eventually(lambda: decoded_tokens(node, name) >= 20, 60, "some tokens are there")
    strike(cluster, placed, "SIGKILL")
    eventually(lambda: node.http.get(path).json()["status"] in ENDED, 180, "it ends")
    ended = node.http.get(path).json()
    if kind == "job":
        assert ended["status"] == "done", ended
        assert ended["result"]["timing"]["resumes"] == 1
        again = node.http.post("/v1/chat/completions", json=asked, timeout=180).json()
        assert ended["result"]["choices"] == again["choices"]
        assert ended["result"]["usage"]["completion_tokens"] == 300
    else:
        again = node.http.post("/v1/responses", json=asked, timeout=180).json()
        assert text_of(ended) == text_of(again) and len(text_of(again)) > 150
        lines = node.http.get("/metrics").text.splitlines()
        losses = [line for line in lines if "runner_losses" in line and f'"{name}"' in line]
        assert any('"resumed"' in line for line in losses), losses


def text_of(response: dict[str, Any]) -> str:
    """Return the text of a response's message."""
    return response["output"][-1]["content"][0]["text"]


def decoded_tokens(node: Node, model: str) -> float:
    """Return how many tokens of a model this node's gateway has counted."""
    lines = node.http.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("shoal_generation_tokens_total{")]
    return sum(float(line.split()[-1]) for line in counts if f'"{model}"' in line)
