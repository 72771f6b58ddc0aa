"""Talks to clients: finds the node, given by id or name, whose worker will carry out the
request."""

from __future__ import annotations

from bus.wire.ids import NodeId
from gateway.cluster import Cluster
from gateway.dialects.faults import HttpFault, HttpFaultRaised


def node_named(cluster: Cluster, word: str, field: str) -> NodeId:
    """Return the node with this id or name. Raises HttpFaultRaised (404) if there is none, or more
    than one."""
    cards = cluster.readings.cards(cluster.reactor.now())
    nodes = {card.node for card in cards if word in (card.node, card.name)}
    if len(nodes) != 1:
        names = ", ".join(sorted(f"{card.name} ({card.node})" for card in cards))
        what = "more than one node is" if nodes else "no node is"
        text = f"{what} named {word[:80]!r}; the nodes are {names}"
        raise HttpFaultRaised(HttpFault(404, "node_not_found", text, field=field))
    return nodes.pop()
