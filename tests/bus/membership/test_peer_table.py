"""The table of peers is bounded, whoever tells of them."""

from __future__ import annotations

import pytest

from bus.membership.peer_table import PeerTable
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.peers import KnownPeer, PeerHello, PeerPorts

LIMIT = 1_000


def hello(name: str) -> PeerHello:
    return PeerHello(
        node=NodeId(f"n-{name}"), name=name, boot=Boot("b1"), namespace="shoal", protocol_min=1,
        protocol_max=1, addresses=(f"{name}:1",),
        ports=PeerPorts(control=2, telemetry=3, candidate=4),
    )  # fmt: skip


def known(name: str) -> KnownPeer:
    return KnownPeer(node=NodeId(f"n-{name}"), addresses=(f"{name}:1",))


@pytest.fixture
def table() -> PeerTable:
    """A table that has one place left."""
    made = PeerTable(NodeId("n-me"))
    for number in range(LIMIT - 1):
        made.learn(known(str(number)), "others")
    return made


def test_of_too_many_nodes_that_others_tell_of_the_last_are_passed_over(table: PeerTable) -> None:
    table.learn(known("last"), "others")
    table.learn(known("more"), "others")
    assert len(table) == LIMIT
    assert "n-last" in table and "n-more" not in table


def test_a_full_table_still_learns_where_a_peer_is(table: PeerTable) -> None:
    table.met(NodeId("n-last"), "hello")
    table.learn(known("last"), "others")
    assert table[NodeId("n-last")].addresses == ("last:1",)


def test_a_node_is_refused_by_a_full_table_unless_it_is_a_peer(table: PeerTable) -> None:
    me = hello("me")
    assert table.refusal(me, hello("last"), 0.0) is None
    table.learn(known("last"), "others")
    refused = table.refusal(me, hello("more"), 0.0)
    assert refused is not None and refused.reason == "full"
    assert refused.message == f"this cluster is full: it has {LIMIT} nodes, the limit"
    assert table.refusal(me, hello("last"), 0.0) is None
