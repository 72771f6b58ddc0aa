"""The latest card of each node: one merge for the leader, gateways, workers and switchboards.

Pure: time arrives as `now`. The newer of two cards of a node is kept. If both have the same time
stamp, every node chooses the same one. So the merge is commutative, associative and idempotent, and
cards may arrive in any order and more than once. A card expires when more than its `ttl_s` has
passed since it arrived. A node that shuts down withdraws its card: it sends a card that expires at
once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from bus.wire.cards import NodeCard
from bus.wire.ids import NodeId

CARD_TTL_S = 120.0
REMEMBERED_S = 600.0
"""How long the card of a silent node is remembered, because its models remain on its disk."""
WITHDRAWN_TTL_S = 0.001
"""The TTL of a card that withdraws its node's earlier cards."""


class HeldCard(NamedTuple):
    """A card and the instant of its arrival."""

    card: NodeCard
    arrived_at: float

    def is_living(self, now: float) -> bool:
        """Return whether the card has not expired."""
        return now - self.arrived_at <= self.card.ttl_s and not is_withdrawn(self.card)

    def is_recent(self, now: float) -> bool:
        """Return whether the card, expired or not, still says what is on the node's disk."""
        return now - self.arrived_at <= REMEMBERED_S and not is_withdrawn(self.card)

    def counts(self, now: float) -> bool:
        """Return whether this card still makes `take` ignore cards that are not newer. A withdrawal
        does so for as long as any other card, because older cards of the node may arrive after
        it."""
        return now - self.arrived_at <= max(self.card.ttl_s, CARD_TTL_S)


class CardBook(dict[NodeId, HeldCard]):
    """The latest card of each node, and when it arrived. `own`: the node whose view this is."""

    def __init__(self, own: NodeId | None = None) -> None:
        super().__init__()
        self.own = own

    def take(self, card: NodeCard, now: float) -> bool:
        """Store a card unless a card that still counts is at least as new. Return whether it was
        stored."""
        held = self.get(card.node)
        if held is not None and held.counts(now) and not is_newer(card, held.card):
            return False
        if held is None:
            self._forget(now)
        self[card.node] = HeldCard(card, now)
        return True

    def living(self, now: float) -> dict[NodeId, NodeCard]:
        """Return the cards that have not expired: this node's first, then by node id."""
        return {n: held.card for n, held in self._in_order() if held.is_living(now)}

    def recent(self, now: float) -> dict[NodeId, NodeCard]:
        """Return the living cards and those of silent nodes, in the order of `living`."""
        return {n: held.card for n, held in self._in_order() if held.is_recent(now)}

    def _forget(self, now: float) -> None:
        """Delete the cards that are not recent and no longer make `take` ignore older cards."""
        for node, held in list(self.items()):
            if not held.is_recent(now) and not held.counts(now):
                del self[node]

    def _in_order(self) -> list[tuple[NodeId, HeldCard]]:
        return sorted(self.items(), key=lambda entry: (entry[0] != self.own, entry[0]))


def is_newer(card: NodeCard, previous: NodeCard) -> bool:
    """Return whether a card of a node is newer than another one of that node. If both have the same
    time stamp, the card whose content sorts later is the newer one."""
    if card.announced_at_s != previous.announced_at_s:
        return card.announced_at_s > previous.announced_at_s
    return card != previous and _content(card) > _content(previous)


def merge(
    cards: Mapping[NodeId, NodeCard], others: Mapping[NodeId, NodeCard], own: NodeId | None = None
) -> dict[NodeId, NodeCard]:
    """Return the newest card of each node in either mapping. The card of the node `own` is always
    that of `cards`."""
    result = dict(cards)
    for node, card in others.items():
        if node != own and (node not in result or is_newer(card, result[node])):
            result[node] = card
    return result


def withdrawal(card: NodeCard, wall_s: float) -> NodeCard:
    """Return the card with which a node withdraws its `card` at `wall_s`."""
    at_s = max(wall_s, card.announced_at_s + WITHDRAWN_TTL_S)
    return card.model_copy(update={"ttl_s": WITHDRAWN_TTL_S, "announced_at_s": at_s})


def is_withdrawn(card: NodeCard) -> bool:
    """Return whether the card withdraws its node's earlier cards."""
    return card.ttl_s <= WITHDRAWN_TTL_S


def _content(card: NodeCard) -> str:
    """Return the content of a card as a text, equal for equal cards."""
    return json.dumps(card.model_dump(mode="json"), sort_keys=True)
