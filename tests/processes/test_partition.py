"""Two real nodes (`make prove`: three) on wires that are cut and slowed: packets are lost in
silence, and come back.

Each node is a machine of its own (`tests.harness.network_namespaces`), beyond loopback and so with
keys. Needs root on Linux, and is skipped, saying why, where that is not given.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.cluster_invariants import assert_invariants
from tests.harness.clusters import Cluster, running_cluster, view_of
from tests.harness.network_namespaces import NetworkNamespaces, NotPermitted, wires
from tests.harness.nodes import MODEL, Node, Stream, eventually
from tests.processes.conftest import PROVING, Ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STORY = "Tell me a long story about a fish."
LONG = {"max_tokens": 900 if PROVING else 450, "ignore_eos": True}
COUNT = "list the integers from 1 to 30"
NODES = 3 if PROVING else 2
PATIENCE_S = 240.0
SLOW_S = 0.05
HELLO = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 4,
}


@pytest.fixture(scope="module")
def wire() -> Iterator[NetworkNamespaces]:
    try:
        with wires(NODES) as made:
            yield made
    except NotPermitted as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def cluster(wire: NetworkNamespaces) -> Iterator[Cluster]:
    with running_cluster(NODES, wire, SHOAL_SETTLE_GRACE_S="35") as made:
        yield made


@pytest.fixture(autouse=True)
def whole(cluster: Cluster, wire: NetworkNamespaces) -> Iterator[None]:
    """Every story begins and ends with all nodes under one holder, and nothing placed."""
    eventually(cluster.formed, PATIENCE_S, "one cluster before the story")
    yield
    wire.delay_s = 0.0
    wire.heal()
    eventually(cluster.formed, PATIENCE_S, "one cluster after the story")
    cluster.clear(PATIENCE_S)


def alone_on(cluster: Cluster, node: Node) -> dict[str, Any]:
    others = [one.node_id() for one in cluster.nodes if one is not node]
    return cluster.place(excluded_nodes=others, seconds=PATIENCE_S)


def holder_of(node: Node) -> str | None:
    view = view_of(node)
    return None if view is None else view["holder"]


def saw(stream: Stream) -> str:
    if stream.error is not None:
        return f"error {stream.error.get('code') or stream.error.get('type')}"
    return f"finish {stream.finish}" if stream.done else f"broken {stream.broken}"


def runners(cluster: Cluster) -> list[str]:
    return [name for n in cluster.nodes for name in n.processes() if name.startswith("runner:")]


@pytest.mark.parametrize("role", ["holder", pytest.param("other", marks=pytest.mark.proof)])
def test_a_cut_fails_what_crosses_it_and_heals_under_one_holder(
    cluster: Cluster, wire: NetworkNamespaces, ledger: Ledger, role: str
) -> None:
    holder = cluster.holder()
    lone = next(n for n in cluster.nodes if (n is holder) == (role == "holder"))
    others = [n for n in cluster.nodes if n is not lone]
    placed = alone_on(cluster, lone)
    expected = lone.chat(STORY, **LONG).json()["choices"][0]["message"]["content"]
    crossing = others[0].stream(STORY, **LONG, x_resume=False).flowing()
    within = lone.stream(STORY, **LONG).flowing()
    number = cluster.nodes.index(lone)
    at = wire.cut([number], [n for n in range(NODES) if n != number])
    crossing.wait(PATIENCE_S)
    assert crossing.error is not None and crossing.done and crossing.ended_at, saw(crossing)
    lost_s = crossing.ended_at - at
    within.wait(PATIENCE_S)
    assert (within.error, within.text) == (None, expected), saw(within)

    def apart() -> bool:
        theirs = {holder_of(node) for node in others}
        return len(theirs) == 1 and theirs != {lone.node_id()} and None not in theirs

    eventually(apart, PATIENCE_S, "the others have a holder of their own")
    eventually(lambda: holder_of(lone) == lone.node_id(), PATIENCE_S, "so has the lone one")
    at = wire.heal()
    eventually(cluster.formed, PATIENCE_S, "one holder after healing")
    healed_s = time.monotonic() - at
    after = cluster.nodes[0].state()["instances"]
    assert list(after) == [placed["instance"]] and len(runners(cluster)) == 1
    kept = after[placed["instance"]]
    assert (kept["generation"], kept["ready"]) == (placed["generation"], placed["ready"])
    eventually(lambda: others[0].chat("hi", max_tokens=4).status_code == 200, PATIENCE_S, "serves")
    ledger(f"a cut ({role} alone)", saw=saw(crossing), seconds=lost_s, bound_s=15, reloaded=0)
    ledger(f"the cut heals ({role})", saw="one holder", seconds=healed_s, bound_s=5, reloaded=0)


@pytest.mark.proof
@pytest.mark.parametrize("role", ["holder", "other"])
def test_after_a_long_cut_no_copy_is_left_over(
    cluster: Cluster, wire: NetworkNamespaces, ledger: Ledger, role: str
) -> None:
    """Longer than the grace: the others give the copy up and load one of their own."""
    holder = cluster.holder()
    lone = next(n for n in cluster.nodes if (n is holder) == (role == "holder"))
    others = [n for n in cluster.nodes if n is not lone]
    placed = alone_on(cluster, lone)
    number = cluster.nodes.index(lone)
    wire.cut([number], [n for n in range(NODES) if n != number])

    def given_up() -> bool:
        views = [view_of(node) for node in others]
        return all(view and placed["instance"] not in view["state"]["instances"] for view in views)

    eventually(given_up, PATIENCE_S, "the others give the copy up")
    for node in (*others, lone):
        answer = node.http.post("/v1/chat/completions", json=HELLO, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
    at = wire.heal()
    eventually(cluster.formed, PATIENCE_S, "one holder after healing")
    seconds = time.monotonic() - at
    assert_invariants(cluster)
    assert [node.chat("hi", max_tokens=4).status_code for node in cluster.nodes] == [200] * NODES
    said = f"served on both sides ({role} alone)"
    ledger("a long cut heals", saw=said, seconds=seconds, bound_s=5, reloaded=1)


@pytest.mark.proof
def test_of_voters_the_majority_goes_on_and_the_rest_refuses_changes(ledger: Ledger) -> None:
    ids = [f"n00000000{number}" for number in range(NODES)]
    try:
        wire = NetworkNamespaces(3)
    except NotPermitted as why:
        pytest.skip(str(why))
    cluster = Cluster(3, wire, SHOAL_VOTERS=",".join(ids))
    try:
        for node, name in zip(cluster.nodes, ids, strict=True):
            (node.home / "state").mkdir(parents=True)
            (node.home / "state" / "node-id").write_text(name + "\n")
        cluster.up()
        _voters_apart(cluster, wire, ledger)
    finally:
        cluster.close()
        wire.close()


def _voters_apart(cluster: Cluster, wire: NetworkNamespaces, ledger: Ledger) -> None:
    lone = cluster.holder()
    others = [n for n in cluster.nodes if n is not lone]
    number = cluster.nodes.index(lone)
    wire.cut([number], [n for n in range(NODES) if n != number])

    def rename(asker: Node, name: str) -> Any:
        return asker.http.post(f"/node/{lone.node_id()}/rename", json={"name": name})

    def elected() -> bool:
        answer = rename(others[0], "by-the-many")
        return answer.status_code == 200 and answer.json()["durability"] == "majority"

    eventually(elected, PATIENCE_S, "two of three go on")
    refused = rename(lone, "by-the-one")
    assert refused.status_code >= 400 and "1 of 3" in refused.text, refused.text
    at = wire.heal()

    def known() -> bool:
        return cluster.formed() and all(
            node.state()["nodes"][lone.node_id()]["name"] == "by-the-many" for node in cluster.nodes
        )

    eventually(known, PATIENCE_S, "the majority's change everywhere")
    seconds = time.monotonic() - at
    ledger("the cut heals (voters)", saw="one holder", seconds=seconds, bound_s=5, reloaded=0)


@pytest.mark.proof
def test_links_of_50_ms_form_a_cluster_that_serves(
    cluster: Cluster, wire: NetworkNamespaces, ledger: Ledger
) -> None:
    for node in cluster.nodes:
        node.down()
    wire.delay_s = SLOW_S
    cluster.up()
    began = time.monotonic()
    cluster.place(min_nodes=2, seconds=PATIENCE_S)
    answer = cluster.nodes[0].chat(COUNT)
    assert answer.status_code == 200, answer.text
    text = answer.json()["choices"][0]["message"]["content"]
    assert text == ", ".join(str(n) for n in range(1, 31))
    seconds = time.monotonic() - began
    ledger("50 ms on all links", saw="30 numbers", seconds=seconds, bound_s=60, reloaded=0)
