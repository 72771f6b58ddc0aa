"""A traced request of a pipeline over three nodes: every rank tells what it did when, what went
from rank to rank has two ends, and the ranks' clocks line up within the stated error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, eventually, kill
from tests.harness.traces import RANKS, check_trace, check_usage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TURNS = [{"role": "user", "content": "Tell me a long story about a fish."}]


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    cluster = Cluster(3)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def pipeline(three: Cluster) -> Iterator[dict[str, Any]]:
    """A pipeline over all three nodes."""
    eventually(three.formed, 120, "one cluster")
    yield three.place(min_nodes=3, sharding="pipeline", seconds=240)
    three.clear()


def node_of(instance: dict[str, Any], rank: int) -> str:
    (seat,) = [one for one in instance["ready"] if one["rank"] == rank]
    return seat["node"]


def traced(cluster: Cluster, asker: int, tokens: int) -> str:
    """The id of an answer that was made in full."""
    node = cluster.nodes[asker]
    sent = {"model": MODEL, "messages": TURNS, "max_tokens": tokens, "ignore_eos": True}

    def answered() -> str | None:
        answer = node.http.post("/v1/chat/completions", json={**sent, "x_trace": True}, timeout=120)
        return answer.json()["id"] if answer.status_code == 200 else None

    return eventually(answered, 120, "the pipeline answers")


def kept(cluster: Cluster, asker: int, name: str, form: str = "") -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        answer = cluster.nodes[asker].http.get(f"/v1/traces/{name}{form}")
        return answer.json() if answer.status_code == 200 else None

    return eventually(found, 20, f"a trace of {name}")


@pytest.mark.proof  # tests/browser/test_page_lanes.py has a traced group of two nodes
def test_each_rank_of_a_pipeline_tells_what_it_did_and_the_parts_are_the_whole(
    three: Cluster, pipeline: dict[str, Any]
) -> None:
    for asker in range(3):
        name = traced(three, asker, 200)
        raw = kept(three, asker, name, "/raw")
        trace = kept(three, asker, name)
        check_usage(raw)
        check_trace(trace, sequential=True)
        ranks = raw["ranks"]
        assert [one["node"] for one in ranks] == [node_of(pipeline, rank) for rank in range(3)]
        assert all(one["told"] for one in ranks), ranks
        for one in ranks:
            # all nodes are of this machine, and read one clock
            clock = one["clock"]
            assert abs(clock["offset_s"]) <= clock["error_s"] < 0.5 * raw["seconds"]
            parts = {part["name"] for part in one["parts"]}
            assert parts >= {"host", "wait", "receive", "compute", "send"}, one["rank"]
        _check_links(raw, trace)


def _check_links(raw: dict[str, Any], trace: dict[str, Any]) -> None:
    """Hidden states go down the ranks, tokens from the last stage to the first, plans to each."""
    links = raw["links"]
    ways = {(one["what"], one["from"], one["to"]) for one in links}
    assert ways == {
        ("plan", 0, 1),
        ("plan", 0, 2),
        ("hidden", 2, 1),
        ("hidden", 1, 0),
        ("tokens", 0, 2),
    }
    for way in ways:
        of = [one for one in links if (one["what"], one["from"], one["to"]) == way]
        steps = [one["step"] for one in of]
        assert len(steps) >= 25 and steps == sorted(steps), (way, steps)
        assert all(one["bytes"] > 0 for one in of)
    widths = {one["bytes"] for one in links if one["what"] == "hidden" and one["from"] == 1}
    assert widths == {one["bytes"] for one in links if one["what"] == "hidden" and one["from"] == 2}
    assert {one["bytes"] for one in links if one["what"] == "tokens"} == {4}
    arrows = [one for one in trace["traceEvents"] if one["ph"] == "s" and one["pid"] >= RANKS]
    assert len(arrows) == len(links)


@pytest.mark.proof
def test_one_of_many_at_once_is_told_too(three: Cluster, pipeline: dict[str, Any]) -> None:
    """Other requests share its steps, and it ends in their midst."""
    node = three.nodes[0]
    streams = [node.stream("Tell me a story.", max_tokens=400, ignore_eos=True) for _ in range(5)]
    for stream in streams:
        stream.flowing()
    name = traced(three, 1, 60)
    for stream in streams:
        stream.wait(120)
        assert stream.error is None
    raw = kept(three, 1, name, "/raw")
    assert all(one["told"] for one in raw["ranks"]), raw["ranks"]
    check_trace(kept(three, 1, name))


@pytest.mark.proof
def test_a_rank_that_dies_is_named_as_the_one_that_told_nothing(
    three: Cluster, pipeline: dict[str, Any]
) -> None:
    asker = three.nodes[0]
    victim = next(one for one in pipeline["ready"] if one["rank"] == 1)
    asked = {"max_tokens": 1500, "ignore_eos": True, "x_trace": True, "x_resume": False}
    stream = asker.stream("Tell me a story.", **asked).flowing()
    kill(victim["pid"])
    stream.wait(60)
    assert stream.error is not None
    listed = eventually(
        lambda: [
            one
            for one in asker.http.get("/v1/traces?limit=5").json()["traces"]
            if one["error"] is not None
        ],
        20,
        "the trace of the request that failed",
    )
    raw = kept(three, 0, listed[0]["request"], "/raw")
    ranks = raw["ranks"]
    assert ranks[0]["told"] and ranks[0]["turns"], "the lead's rank told"
    assert not ranks[1]["told"] and "no data" in ranks[1]["why"]
    assert ranks[1]["node"] == victim["node"]
    check_trace(kept(three, 0, listed[0]["request"]))
