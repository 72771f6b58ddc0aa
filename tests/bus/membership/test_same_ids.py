"""Ids that two nodes have, as switchboards report them."""

from __future__ import annotations

from bus.membership.peer_table import SAME_ID_S, PeerTable, SameIds, same_id_words
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeersReading

ME, TWIN, OTHER = NodeId("me"), NodeId("twin"), NodeId("other")


def reading(node: NodeId, *doubles: NodeId) -> PeersReading:
    table = PeerTable(node)
    table.doubles = frozenset(doubles)
    return PeersReading(node=node, peers=table.readings(0.0))


def test_a_report_of_its_own_switchboard_counts_and_of_others_only_about_itself() -> None:
    ids = SameIds(ME)
    ids.take(reading(ME, TWIN), 0.0)
    ids.take(reading(OTHER, NodeId("third"), ME), 1.0)
    assert ids.reports(1.0) == ((ME, same_id_words(ME)), (TWIN, same_id_words(TWIN)))
    assert ids.reports(SAME_ID_S + 0.5) == ((ME, same_id_words(ME)),)
    assert ids.reports(SAME_ID_S + 1.5) == ()


def test_a_linked_peer_whose_id_another_node_has_stays_linked() -> None:
    table = PeerTable(ME)
    table.met(TWIN, "hello").status = "linked"
    table.doubles = frozenset({TWIN, ME})
    (row,) = table.readings(0.0)
    assert row.status == "linked" and row.why == same_id_words(TWIN)
