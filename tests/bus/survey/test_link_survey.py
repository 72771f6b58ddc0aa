"""Links measured between real switchboards over TCP on loopback, with and without keys."""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Iterator

import pytest

from bus.links.cluster_key import ClusterKey
from bus.survey.probe_schedule import ProbeTarget
from bus.wire.ids import NodeId
from bus.wire.messages.readings import LinkReading
from bus.wire.topology import PRIORS
from tests.bus.survey.test_probe_schedule import runner
from tests.harness.joined_switchboards import JoinedSwitchboards, boards


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[JoinedSwitchboards]:
    monkeypatch.setattr("bus.survey.probe_schedule.FIRST_S", 0.2)
    monkeypatch.setattr("bus.survey.probe_schedule.GAP_S", 0.1)
    monkeypatch.setattr("bus.survey.link_survey.TICK_S", 0.05)
    with boards() as made:
        yield made


def readings(cluster: JoinedSwitchboards, name: str) -> dict[str, LinkReading]:
    """What arrives at one node of everybody's links, kept up to date."""
    found: dict[str, LinkReading] = {}
    cluster.client(name, "hearer").hear(
        "reading.link", lambda _, envelope: found.update({envelope.node: envelope.message})
    )
    return found


@pytest.mark.parametrize("key", [None, ClusterKey(secrets.token_bytes(32))], ids=["plain", "keys"])
def test_linked_nodes_measure_each_other_and_everybody_hears_it(
    cluster: JoinedSwitchboards, key: ClusterKey | None
) -> None:
    cluster.start("a", key=key)
    cluster.start("b", "a", key=key)
    found = readings(cluster, "a")
    cluster.until(lambda: len(found) == 2 and all(one.links for one in found.values()), "both ways")
    (link,) = found["n-a"].links
    assert (link.peer, link.host, link.at_least) == ("n-b", "127.0.0.1", True)
    assert link.bytes_per_s > 0
    assert link.round_trip_s > 0
    assert link.latency_s == PRIORS["loopback"].latency_s
    for board in cluster.boards.values():
        assert board.peers is not None
        assert all(peer.status == "linked" for peer in board.peers.membership.peers.values())


def test_a_node_that_is_not_to_measure_answers_others_all_the_same(
    cluster: JoinedSwitchboards,
) -> None:
    cluster.start("a", measures=False)
    cluster.start("b", "a")
    found = readings(cluster, "a")
    cluster.until(lambda: found.get("n-b") and found["n-b"].links, "b has measured")
    assert cluster.boards["a"].surveyor is None
    assert found["n-a"].links == () and found["n-a"].latency_every_s == 0, "and says so"
    assert found["n-b"].latency_every_s > 0


def test_nobody_is_measured_while_a_runner_decodes_at_either_end(
    cluster: JoinedSwitchboards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.survey.probe_schedule.FIRST_S", 1_000.0)
    cluster.start("a")
    cluster.start("b", "a")
    worker, topic = cluster.client("b", "runner:00"), "reading.runner.n-b.runner:00"
    surveyors = [board.surveyor for board in cluster.boards.values()]
    rounds = [one.rounds for one in surveyors if one is not None]

    def known() -> bool:
        worker.publish(topic, runner(NodeId("n-b"), running=1))
        kept = [board.planes["telemetry"].retained for board in cluster.boards.values()]
        heard = all(one.matching(topic, 0.0) for one in kept)
        return heard and all(len(one.turns) == 2 for one in rounds)

    cluster.until(known, "both know that b decodes")
    turns = [turn for one in rounds for target, turn in one.turns.items() if target.peer != one.me]
    for turn in turns:
        turn.due_at = turn.latency_due_at = 0.0
    cluster.settle(100)
    assert not any(turn.rates or turn.trips for turn in turns)
    worker.publish(topic, runner(NodeId("n-b")))
    cluster.until(lambda: all(turn.rates and turn.trips for turn in turns), "idle again")


def test_an_address_at_which_another_node_answers_counts_for_nothing(
    cluster: JoinedSwitchboards,
) -> None:
    cluster.start("a")
    cluster.start("b", "a")
    cluster.start("c", "a")
    cluster.until(lambda: cluster.linked("a") == {"b", "c"}, "linked")
    peers = cluster.boards["a"].peers
    assert peers is not None
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{deaf.getsockname()[1]}"
        wrong = f"127.0.0.1:{cluster.ports['c']}"
        peer = peers.membership.peers[NodeId("n-b")]
        surveyor = cluster.boards["a"].surveyor
        assert surveyor is not None

        right = ProbeTarget(NodeId("n-b"), f"127.0.0.1:{cluster.ports['b']}")
        others = [ProbeTarget(NodeId("n-b"), address) for address in (wrong, nobody)]

        def each_had_its_turn() -> bool:
            peer.addresses = (wrong, nobody)
            turns = surveyor.rounds.turns
            gone = [turns[one].failures for one in others if one in turns]
            return len(gone) == 2 and all(gone) and right in turns and bool(turns[right].rates)

        cluster.until(each_had_its_turn, "one works, two do not")
        assert not any(surveyor.rounds.turns[one].rates for one in others)


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address on Linux alone")
def test_a_node_on_two_networks_is_measured_on_both_and_linked_on_one(
    cluster: JoinedSwitchboards,
) -> None:
    key = ClusterKey(secrets.token_bytes(32))
    cluster.start("a", key=key)
    cluster.start("b", "a", key=key, listen="0.0.0.0", hosts=("127.0.0.2", "127.0.0.3"))
    found = readings(cluster, "a")

    def hosts() -> set[str]:
        return {one.host for one in found["n-a"].links} if "n-a" in found else set()

    cluster.until(lambda: hosts() == {"127.0.0.2", "127.0.0.3"}, "both ways")
    peers = cluster.boards["a"].peers
    assert peers is not None
    assert peers.membership.peers[NodeId("n-b")].host in hosts()
    assert len(peers.membership.lines) == 1
