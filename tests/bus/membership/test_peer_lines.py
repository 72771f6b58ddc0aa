"""The lines of a node to others: which of them lead to a node, and whether that node refused."""

from __future__ import annotations

from bus.membership.peer_lines import LineTable
from bus.wire.ids import NodeId

N1, N2 = NodeId("n1"), NodeId("n2")


def test_a_refusal_belongs_to_the_node_that_answered_at_the_address() -> None:
    lines = LineTable()
    for address in ("a", "b", "c"):
        lines.dial(address, None, 0.0)
    lines.leads.update(a=N1, b=N2, c=N1)
    assert lines.refusal_by(N1) == ""
    lines["b"].refused = "another cluster"
    assert lines.refusal_by(N1) == "", "that is the answer of another node"
    assert lines.refusal_by(N2) == "another cluster"
    lines["c"].refused = "forgotten"
    assert lines.refusal_by(N1) == "forgotten", "its first line has no refusal"


def test_the_lines_to_a_node_come_in_the_order_in_which_they_were_dialled() -> None:
    lines = LineTable()
    for address, node in (("b", N1), ("x", N2), ("a", N1)):
        lines.dial(address, node, 0.0)
    assert [line.address for line in lines.to(N1)] == ["b", "a"]
    assert lines.to(NodeId("n3")) == []
