"""Links measured between real switchboards over TCP on loopback, with and without keys."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator

import pytest

from bus.ids import NodeId
from bus.keys import ClusterKey
from bus.messages.readings import LinkReading, RunnerReading
from bus.topology import PRIORS
from tests.bus.test_rounds import runner
from tests.harness.boards import Boards, boards


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Boards]:
    monkeypatch.setattr("bus.rounds.FIRST_S", 0.2)
    monkeypatch.setattr("bus.rounds.GAP_S", 0.1)
    monkeypatch.setattr("bus.surveyor.TICK_S", 0.05)
    with boards() as made:
        yield made


def readings(cluster: Boards, name: str) -> dict[str, LinkReading]:
    """What arrives at one node of everybody's links, kept up to date."""
    found: dict[str, LinkReading] = {}
    cluster.client(name, "hearer").hear(
        "reading.link", lambda _, envelope: found.update({envelope.node: envelope.message})
    )
    return found


@pytest.mark.parametrize("key", [None, ClusterKey(secrets.token_bytes(32))], ids=["plain", "keys"])
def test_linked_nodes_measure_each_other_and_everybody_hears_it(
    cluster: Boards, key: ClusterKey | None
) -> None:
    cluster.start("a", key=key)
    cluster.start("b", "a", key=key)
    found = readings(cluster, "a")
    cluster.until(lambda: len(found) == 2 and all(one.links for one in found.values()), "both ways")
    (link,) = found["n-a"].links
    assert (link.peer, link.host, link.at_least) == ("n-b", "127.0.0.1", True)
    assert link.bytes_per_s > 0
    assert link.latency_s >= min(PRIORS["loopback"].latency_s, link.round_trip_s / 2)
    for board in cluster.boards.values():
        assert board.peers is not None
        assert all(peer.status == "linked" for peer in board.peers.membership.peers.values())


def test_nobody_is_measured_while_a_runner_decodes_at_either_end(cluster: Boards) -> None:
    cluster.start("a")
    cluster.start("b", "a")
    worker = cluster.client("b", "runner:00")
    cluster.settle(5)
    busy: RunnerReading = runner(NodeId("n-b"), running=1)
    topic = "reading.runner.n-b.runner:00"
    worker.publish(topic, busy)
    found = readings(cluster, "a")
    measured = cluster.boards["a"].surveyor
    assert measured is not None
    cluster.until(lambda: cluster.linked("a") == {"b"}, "linked")
    worker.publish(topic, busy)
    cluster.settle(150)
    before = {name for name, one in found.items() if one.links}
    worker.publish(topic, runner(NodeId("n-b")))
    cluster.until(lambda: len({n for n, one in found.items() if one.links}) == 2, "idle again")
    assert before == set()


def test_an_address_at_which_another_node_answers_counts_for_nothing(cluster: Boards) -> None:
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

        def failed() -> bool:
            peer.addresses = (wrong, nobody)
            turns = surveyor.rounds.turns
            mine = [turn for target, turn in turns.items() if target.address in (wrong, nobody)]
            return sum(turn.failures > 0 for turn in mine if not turn.found) >= 2

        cluster.until(failed, "both are given up")
        hosts = {target.address for target, turn in surveyor.rounds.turns.items() if turn.found}
    assert f"127.0.0.1:{cluster.ports['b']}" in hosts
