"""Two real nodes, of which any may die: the other serves what it can, and what was acknowledged
as replicated is there afterwards; what was only local and lost is said so."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.clusters import Cluster, running_cluster, view_of
from tests.harness.nodes import Node, Stream, eventually
from tests.processes.conftest import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STORY = "Tell me a long story about a fish."
PATIENCE_S = 240.0
ANSWER_S = 60.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with running_cluster(2) as made:
        yield made


@pytest.fixture(autouse=True)
def both(pair: Cluster) -> Iterator[None]:
    """Every story begins and ends with two nodes under one holder, and nothing placed."""
    eventually(pair.formed, PATIENCE_S, "one cluster before the story")
    yield
    eventually(pair.formed, PATIENCE_S, "one cluster after the story")
    pair.clear()


def rename(asker: Node, node: Node, name: str) -> str:
    """What the acknowledgement is worth; nothing while there is no holder to give one."""
    answer = asker.http.post(f"/node/{node.node_id()}/rename", json={"name": name})
    if answer.status_code >= 500:
        return ""
    assert answer.status_code == 200, answer.text
    return answer.json()["durability"]


def name_of(asker: Node, node: Node) -> str:
    view = view_of(asker)
    known = {} if view is None else view["state"]["nodes"]
    return known.get(node.node_id(), {}).get("name", "")


def replicated(pair: Cluster, asker: Node, node: Node, name: str) -> None:
    """Rename so that both have it."""
    eventually(lambda: rename(asker, node, name) == "replicated", PATIENCE_S, "both take part")
    eventually(lambda: all(name_of(n, node) == name for n in pair.nodes), ANSWER_S, "both know it")


def alone_on(pair: Cluster, node: Node) -> dict[str, Any]:
    """A copy of the model on this node and no other."""
    others = [one.node_id() for one in pair.nodes if one is not node]
    return pair.place(excluded_nodes=others, if_absent=False, seconds=PATIENCE_S)


def answers(node: Node) -> bool:
    """Whether a request that arrives now is served."""
    try:
        reply = node.chat("hi", max_tokens=4)
    except httpx.HTTPError:
        return False
    return reply.status_code == 200


def saw(stream: Stream) -> str:
    if stream.error is not None:
        return f"error {stream.error.get('code') or stream.error.get('type')}"
    return f"finish {stream.finish}" if stream.done else f"broken {stream.broken}"


def is_whole(node: Node, names: set[str]) -> bool:
    view = view_of(node)
    found = {} if view is None else view["state"]["instances"]
    return names <= set(found) and all(found[name]["status"] == "ready" for name in names)


@pytest.mark.proof
def test_what_sensors_tell_of_each_node_is_known_on_both(pair: Cluster) -> None:
    both = {node.node_id() for node in pair.nodes}

    def in_state(node: Node) -> bool:
        view = view_of(node)
        return view is not None and set(view["telemetry"]["hardware"]) == both

    def in_snapshot(node: Node) -> bool:
        nodes = node.http.get("/metrics/snapshot").json()["nodes"]
        return {one["node"] for one in nodes if one["hardware"] is not None} == both

    for node in pair.nodes:
        eventually(lambda node=node: in_state(node), ANSWER_S, "the state has both")
        eventually(lambda node=node: in_snapshot(node), ANSWER_S, "the snapshot has both")

        def told(node: Node = node) -> dict[str, Any] | None:
            return json.loads(node.shoal("status", "--json").stdout)["hardware"]

        hardware = eventually(told, ANSWER_S, "the status has it")
        assert hardware.keys() >= {"accelerators", "cpu_temperature_c", "cpu_power_w", "untold"}
        lines = node.shoal("status").stdout.splitlines()
        assert [line for line in lines if line.startswith("hardware: ")]


@pytest.mark.proof
@pytest.mark.parametrize("role", ["holder", pytest.param("other", marks=pytest.mark.proof)])
def test_either_may_die_and_the_other_serves_what_it_can(
    pair: Cluster, ledger: Ledger, role: str
) -> None:
    holder = pair.holder()
    victim = next(n for n in pair.nodes if (n is holder) == (role == "holder"))
    survivor = next(n for n in pair.nodes if n is not victim)
    placed = {alone_on(pair, node)["instance"] for node in pair.nodes}
    replicated(pair, survivor, victim, f"victim-{role}")
    fields = {"max_tokens": 900, "ignore_eos": True}
    streams = [survivor.stream(STORY, **fields).flowing() for _ in range(4)]
    at = victim.kill()
    eventually(lambda: answers(survivor), PATIENCE_S, "the survivor answers")
    seconds = time.monotonic() - at
    for stream in streams:
        stream.wait(ANSWER_S)
        assert stream.done and (stream.error is None) == (stream.finish == "length"), saw(stream)
    eventually(
        lambda: rename(survivor, survivor, f"alone-{role}") == "local", PATIENCE_S, "says local"
    )
    assert name_of(survivor, victim) == f"victim-{role}"
    victim.up(PATIENCE_S)
    eventually(pair.formed, PATIENCE_S, "both are one cluster again")
    eventually(
        lambda: all(is_whole(node, placed) for node in pair.nodes), PATIENCE_S, "both copies serve"
    )
    for node in pair.nodes:
        assert name_of(node, victim) == f"victim-{role}"
        assert name_of(node, survivor) == f"alone-{role}"
    said = ", ".join(sorted({saw(stream) for stream in streams}))
    ledger(f"kill -9 one of two nodes ({role})", saw=said, seconds=seconds, bound_s=15, reloaded=1)


@pytest.mark.proof
@pytest.mark.parametrize("first", [1, 0])
def test_both_may_die_and_restart_in_any_order(pair: Cluster, ledger: Ledger, first: int) -> None:
    early, late = pair.nodes[first], pair.nodes[1 - first]
    placed = {alone_on(pair, early)["instance"]}
    replicated(pair, early, late, f"late-{first}")
    for node in pair.nodes:
        node.kill()
    early.up(PATIENCE_S)
    at = time.monotonic()
    eventually(lambda: answers(early), PATIENCE_S, "the first serves without the other")
    seconds = time.monotonic() - at
    assert name_of(early, late) == f"late-{first}"
    late.up(PATIENCE_S)
    eventually(pair.formed, PATIENCE_S, "both are one cluster again")
    assert name_of(late, late) == f"late-{first}"
    assert is_whole(late, placed)
    ledger(
        f"kill -9 both nodes, number {first + 1} starts first",
        saw="its copy answers before the other is up",
        seconds=seconds,
        bound_s=30,
        reloaded=1,
    )


@pytest.mark.proof
def test_what_was_local_and_lost_is_said_so(pair: Cluster) -> None:
    one, two = pair.nodes
    replicated(pair, one, one, "shared")
    two.kill()
    eventually(lambda: rename(one, one, "lost") == "local", PATIENCE_S, "says local")
    one.kill()
    two.up(PATIENCE_S)
    eventually(lambda: rename(two, two, "kept") == "local", PATIENCE_S, "says local")
    assert name_of(two, one) == "shared"
    one.up(PATIENCE_S)
    eventually(pair.formed, PATIENCE_S, "both are one cluster again")

    def agreed() -> bool:
        names = {(name_of(node, one), name_of(node, two)) for node in pair.nodes}
        return names == {("shared", "kept")}

    eventually(agreed, ANSWER_S, "the changes of the one that stayed up")

    def is_said() -> bool:
        lines = [
            line for line in one.log_lines("master") if "a change was undone" in line["message"]
        ]
        return "lost" in {json.loads(line["what"]).get("name") for line in lines}

    eventually(is_said, ANSWER_S, "the change that was undone is said")
