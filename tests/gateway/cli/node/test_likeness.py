"""Which nodes stand apart, by what, and what `shoal cluster-info` makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bus.hardware.collective_test import order_of
from bus.wire.cards import NodeCard
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.peers import PeerReading, PeersReading
from gateway.cli.app import app
from gateway.cli.node.likeness import FACTS, ClusterReport, facts_of, fingerprint, newest, report
from gateway.cli.node.node_state import parse_state
from gateway.cli.verbs.cluster.cluster_info import clock
from tests.harness.node_server import NODE, serving, state

MINI = NodeId("n-mini")


def a_card(node: NodeId, name: str, **more: Any) -> NodeCard:
    card = NodeCard(
        node=node,
        name=name,
        platform="darwin-arm64",
        cores=10,
        memory_bytes=48 << 30,
        backends=("mlx-metal",),
        mlx_version="0.32.4",
        shoal_version="0.1.0",
        tree="0a1b2c3d",
        slots=8,
        announced_at_s=1.0,
        chip="Apple M4 Pro",
        os_version="macOS 26.2",
        python_version="3.13.1",
        mlx_lm_version="0.32.2",
        launched_by="launchd",
    )
    return card.model_copy(update=more)


def cluster(*peers: PeerReading, strangers: tuple[str, ...] = (), **mini: Any) -> dict[str, Any]:
    """The node `desk` is asked; `mini` is as `desk` but for what is said of it."""
    found = state([], [])
    cards = [a_card(NODE, "desk"), a_card(MINI, "mini", **mini)]
    found["telemetry"]["cards"] = [card.model_dump(mode="json") for card in cards]
    linked = PeerReading(
        node=MINI, name="mini", status="linked", round_trip_s=0.002, clock_offset_s=0.25
    )
    reading = PeersReading(node=NODE, peers=peers or (linked,), strangers=strangers)
    found["telemetry"]["peers"] = {NODE: reading.model_dump(mode="json")}
    return found


def reported(body: dict[str, Any]) -> ClusterReport:
    return report(parse_state(body))


def run(body: dict[str, Any], *words: str) -> tuple[int, str]:
    with serving(lambda *_: (200, body)) as url:
        result = CliRunner().invoke(
            app, ["cluster-info", *words, "--url", url], env={"COLUMNS": "220", "NO_COLOR": "1"}
        )
    return result.exit_code, result.stdout


def test_nodes_that_are_alike_are_aligned() -> None:
    found = reported(cluster())
    assert (found.verdict, found.differences, found.unreachable) == ("aligned", (), ())
    assert len({node.fingerprint for node in found.nodes}) == 1
    assert run(cluster())[0] == 0


@pytest.mark.parametrize(
    ("more", "field", "remedy"),
    [
        ({"mlx_version": "0.32.10"}, "mlx", "on desk: `pip install mlx==0.32.10`"),
        ({"mlx_lm_version": "0.31.0"}, "mlx_lm", "on mini: `pip install mlx-lm==0.32.2`"),
        ({"shoal_version": "0.0.9"}, "shoal", "on mini: install shoal 0.1.0"),
        ({"tree": "ffffffff"}, "code", "(0a1b2c3d on desk; ffffffff on mini)"),
        ({"python_version": "3.12.9"}, "python", "on mini: recreate shoal's environment"),
    ],
)
def test_a_required_difference_is_named_with_who_has_to_move(
    more: dict[str, str], field: str, remedy: str
) -> None:
    found = reported(cluster(**more))
    assert found.verdict == "misaligned"
    assert [one.field for one in found.differences] == [field]
    assert remedy in found.differences[0].remedy
    code, output = run(cluster(**more))
    assert code == 1
    assert remedy in output
    assert "misaligned" in output


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"os_version": "macOS 26.1"}, "os"),
        ({"platform": "linux-x86_64"}, "arch"),
        ({"chip": "Apple M2"}, "chip"),
        ({"memory_bytes": 16 << 30}, "memory"),
        ({"launched_by": "shoal up"}, "launch"),
    ],
)
def test_machines_of_another_make_are_mixed_and_only_strictly_wrong(
    more: dict[str, Any], field: str
) -> None:
    found = reported(cluster(**more))
    assert found.verdict == "mixed"
    assert [one.field for one in found.differences] == [field]
    assert run(cluster(**more))[0] == 0
    assert run(cluster(**more), "--strict")[0] == 1


def test_a_patch_of_python_is_no_difference_and_a_fact_that_is_not_told_is_noted() -> None:
    found = reported(cluster(python_version="3.13.7"))
    assert found.verdict == "aligned"
    assert len({node.fingerprint for node in found.nodes}) == 1
    found = reported(cluster(mlx_lm_version="", mlx_version="unknown"))
    assert found.verdict == "mixed"
    assert {one.field: one.values["not reported"] for one in found.differences} == {
        "mlx": ("mini",),
        "mlx_lm": ("mini",),
    }


CHANGES: dict[str, list[Any]] = {
    "shoal_version": ["0.1.0", "0.2.0", "unknown"],
    "mlx_version": ["0.32.4", "0.33.0", "unknown"],
    "mlx_lm_version": ["0.32.2", ""],
    "python_version": ["3.13.1", "3.13.7", "3.12.1", ""],
    "os_version": ["macOS 26.2", ""],
    "chip": ["Apple M4 Pro", ""],
    "memory_bytes": [48 << 30, 16 << 30],
    "launched_by": ["launchd", "shoal up"],
}


@given(st.fixed_dictionaries({name: st.sampled_from(CHANGES[name]) for name in CHANGES}))
def test_nodes_are_aligned_only_where_their_fingerprints_are_the_same(mini: dict[str, Any]) -> None:
    found = reported(cluster(**mini))
    prints = {node.fingerprint for node in found.nodes}
    apart = {one.field for one in found.differences} - {"launch"}
    assert (len(prints) == 1) == (not apart)
    if found.verdict == "aligned":
        assert len(prints) == 1


@pytest.mark.parametrize("status", ["silent", "left", "refused"])
def test_a_node_that_is_not_reached_fails_and_is_not_compared(status: Any) -> None:
    lost = PeerReading(node=MINI, name="mini", status=status, why="it went away")
    body = cluster(lost, mlx_version="0.1")
    found = reported(body)
    assert found.verdict == "aligned"
    assert [(one.name, one.why) for one in found.unreachable] == [("mini", "it went away")]
    code, output = run(body)
    assert code == 1
    words = "mini is not in this cluster" if status == "refused" else "cannot reach mini"
    assert f"{words}: it went away" in output


def test_a_linked_node_without_a_card_and_a_stranger_fail_too() -> None:
    silent = PeerReading(node=NodeId("n-new"), name="new", status="linked")
    body = cluster(silent, strangers=("10.0.0.9:24154: no answer",))
    why = {one.name: one.why for one in reported(body).unreachable}
    assert why["new"] == "the node has not reported its description yet"
    code, output = run(body)
    assert code == 1
    assert "no node of this cluster answers at 10.0.0.9:24154" in output
    assert run(cluster(strangers=("10.0.0.9:24154: no answer",)))[0] == 1


def test_what_ails_a_node_is_said_in_words() -> None:
    body = cluster()
    body["nodeHealth"][MINI] = {
        "status": "warn",
        "code": "thunderbolt_loop",
        "message": "the bridges of 3 nodes form a ring",
        "remediation": "",
    }
    assert "mini: warn: the bridges of 3 nodes form a ring" in run(body)[1]


def test_a_cluster_that_nobody_leads_is_not_well() -> None:
    code, output = run({**cluster(), "live": False})
    assert code == 1 and "the cluster has no leader" in output
    assert json.loads(run({**cluster(), "holder": None}, "--json")[1])["well"] is False


def test_a_forgotten_node_is_not_missed() -> None:
    body = cluster(PeerReading(node=MINI, name="mini", status="silent"))
    body["state"]["forgotten"] = [MINI]
    assert [one.name for one in reported(body).nodes] == ["desk"]


def test_what_a_node_serves_and_its_clock_are_told() -> None:
    body = cluster()
    shards = tuple(
        Shard(rank=rank, node=node, first_layer=4 * rank, last_layer=4 * rank + 4, bytes_reserved=1)
        for rank, node in enumerate((MINI, NODE))
    )
    one = Instance(
        instance=InstanceId("i1"),
        model=ModelId("big"),
        shards=shards,
        context_tokens=1,
        keep_alive_s=1.0,
        status="ready",
    )
    gone = one.model_copy(update={"instance": InstanceId("i2"), "status": "failed"})
    test = gone.model_copy(
        update={"instance": InstanceId("i3"), "test": order_of("quick", 1 << 20)}
    )
    tested = test.model_copy(update={"instance": InstanceId("i4"), "status": "ready"})
    body["state"]["instances"] = {
        copy.instance: copy.model_dump(mode="json") for copy in (one, gone, test, tested)
    }
    code, output = run(body)
    assert code == 0
    assert "big 1/2" in output and "big 2/2" in output and "+250 ms" in output
    said = json.loads(run(body, "--json")[1])
    mini = next(node for node in said["nodes"] if node["name"] == "mini")
    assert mini["clock_offset_s"] == 0.25
    assert mini["serves"] == [
        {"model": "big", "instance": "i1", "rank": 0, "ranks": 2, "status": "ready"}
    ]


def test_the_document_keeps_its_names() -> None:
    said = json.loads(run(cluster(mlx_version="0.33.0"), "--json")[1])
    assert set(said) == {
        "well", "asked", "holder", "verdict", "nodes", "differences", "unreachable", "strangers"
    }  # fmt: skip
    assert said["well"] is False
    assert said["differences"][0]["values"] == {"0.32.4": ["desk"], "0.33.0": ["mini"]}
    assert set(said["nodes"][0]["facts"]) == {field.name for field in FACTS}


def test_who_started_a_node_has_no_part_in_its_fingerprint() -> None:
    by_hand, by_system = (
        fingerprint(facts_of(a_card(NODE, "desk", launched_by=by)))
        for by in ("shoal up", "launchd")
    )
    other = fingerprint(facts_of(a_card(NODE, "desk", chip="Apple M2")))
    assert by_hand == by_system != other


@given(st.lists(st.lists(st.integers(0, 99), min_size=3, max_size=3), min_size=1))
def test_the_newest_version_is_that_of_the_greatest_numbers(versions: list[list[int]]) -> None:
    assert newest([".".join(map(str, one)) for one in versions]) == ".".join(
        map(str, max(versions))
    )


@pytest.mark.parametrize(
    ("offset_s", "said"), [(None, "?"), (0.0, "+0 ms"), (-0.25, "-250 ms"), (61.24, "+61.2 s")]
)
def test_a_clocks_offset_is_said_in_its_own_unit(offset_s: float | None, said: str) -> None:
    assert clock(offset_s) == said
