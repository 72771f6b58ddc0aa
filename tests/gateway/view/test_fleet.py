"""The fleet: cards of linked nodes, and cards that other nodes passed on."""

from __future__ import annotations

from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.messages.readings import CardReading
from gateway.view.fleet import FleetView
from gateway.view.readings import ClusterReadings
from tests.harness.fleets import card


def test_the_fleet_has_the_newer_card_of_a_node_and_whether_it_came_from_the_node() -> None:
    readings = ClusterReadings(own=NodeId("b"))
    view = FleetView(readings)
    cards = {n: card(1.0, n, n) for n in "abcd"}
    for name in "ab":
        readings.heard(CardReading(card=cards[name]), 0.0)
    later = cards["a"].model_copy(update={"announced_at_s": 2.0})
    mine = cards["b"].model_copy(update={"announced_at_s": 2.0})
    for each in (cards["c"], cards["d"], later, mine):
        view.take(CardReading(card=each), 10.0)
    fleet = [(entry.card.node, entry.linked, entry.age_s) for entry in view.cards(20.0)]
    assert fleet == [("b", True, 20.0), ("a", False, 10.0), ("c", False, 10.0), ("d", False, 10.0)]
    assert [each.node for each in readings.cards(20.0)] == ["b", "a"], "linked nodes alone"
    assert [entry.card.node for entry in view.cards(121.0)] == ["a", "c", "d"], "b's expired"
    left = PeerReading(node=NodeId("c"), name="c", status="left")
    readings.heard(PeersReading(node=NodeId("b"), peers=(left,)), 20.0)
    assert "c" not in [entry.card.node for entry in view.cards(20.0)]
