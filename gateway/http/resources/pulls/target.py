"""Talks to clients about the node that they name, by its id or name, for what a worker is to do."""

from __future__ import annotations

from bus.wire.ids import NodeId
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.service import HttpService


def node_named(service: HttpService, word: str, field: str) -> NodeId:
    """Return the node that is meant. Raises HttpFaultRaised (404) unless it is one."""
    cards = service.readings.cards(service.reactor.now())
    found = {card.node for card in cards if word in (card.node, card.name)}
    if len(found) != 1:
        names = ", ".join(sorted(f"{card.name} ({card.node})" for card in cards))
        what = "more than one node is" if found else "no node is"
        text = f"{what} named {word[:80]!r}; the nodes are {names}"
        raise HttpFaultRaised(HttpFault(404, "node_not_found", text, field=field))
    return found.pop()
