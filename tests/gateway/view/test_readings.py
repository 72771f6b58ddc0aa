from __future__ import annotations

from pathlib import Path

import pytest

from bus.wire.cards import NodeCard
from bus.wire.ids import InstanceId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.peers import PeerReading, PeersReading, PeerStatus
from bus.wire.messages.readings import CardReading
from gateway.view.readings import ClusterReadings
from tests.harness import node_server
from tests.harness.node_server import instance, reading


def group() -> tuple[ClusterReadings, Instance]:
    """Readings of both ranks of an instance, and of one of a generation before it."""
    one = instance("m").model_copy(update={"generation": 2})
    lead = reading(one)
    follower = {"rank": 1, "node": NodeId("far"), "active_bytes": 40}
    old = {"generation": 1, "process": "runner:07", "active_bytes": 500}
    known = ClusterReadings()
    for said in (lead, lead.model_copy(update=follower), lead.model_copy(update=old)):
        known.heard(said, 0.0)
    return known, one


def test_requests_are_the_leads_to_tell_and_memory_is_every_ranks() -> None:
    known, one = group()
    held = {one.instance: one}
    assert [found.node for found in known.serving(held, 1.0)] == [node_server.NODE]
    assert sorted(found.rank for found in known.ranks(held, 1.0)) == [0, 1]
    assert known.memory_of(one, 1.0) == 3 + 40
    found = known.runner_of(one, 1.0)
    assert found is not None and found.rank == 0


def node_card(name: str) -> NodeCard:
    """The card of a node with a model of the same name."""
    return NodeCard(
        node=NodeId(name), name=name, platform="linux", cores=1, memory_bytes=1,
        backends=("mlx-cpu",), mlx_version="", shoal_version="", slots=1, announced_at_s=1.0,
        models=(node_server.card(name, Path("/m") / name),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("told", "there"),
    [
        ({"a": "left"}, {"b"}),
        ({"a": "silent"}, {"a", "b"}),
        ({"a": "linked"}, {"a", "b"}),
    ],
)
def test_the_cards_of_a_node_go_when_it_says_goodbye_and_stay_when_it_is_silent(
    told: dict[str, PeerStatus], there: set[str]
) -> None:
    known = ClusterReadings()
    for name in ("a", "b"):
        known.heard(CardReading(card=node_card(name)), 0.0)
    peers = tuple(PeerReading(node=NodeId(n), name=n, status=s) for n, s in told.items())
    known.heard(PeersReading(node=NodeId("b"), peers=peers), 100.0)
    assert {card.node for card in known.cards(101.0)} == there


def test_a_node_that_was_removed_from_the_cluster_has_neither_card_nor_models() -> None:
    forgotten: tuple[NodeId, ...] = ()
    known = ClusterReadings(lambda: forgotten)
    for name in ("a", "b"):
        known.heard(CardReading(card=node_card(name)), 0.0)
    assert set(known.models(1.0)) == {"a", "b"}
    forgotten = (NodeId("a"),)
    assert set(known.models(1.0)) == {"b"}
    assert [card.node for card in known.cards(1.0)] == ["b"]
    forgotten = ()
    assert set(known.models(1.0)) == {"a", "b"}


def test_what_no_instance_has_is_no_rank_of_it() -> None:
    known, one = group()
    other = one.model_copy(update={"instance": InstanceId("other")})
    assert known.ranks({other.instance: other}, 1.0) == [] and known.memory_of(other, 1.0) == 0
