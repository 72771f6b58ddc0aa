"""The node cards of all nodes, including nodes that this one has no link to.

Pure: time arrives as `now`. Cards that other nodes passed on are used only by the fleet view
(`/fleet`), because this node cannot send requests to the nodes of such cards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from bus.membership.card_book import CardBook, merge
from bus.wire.cards import NodeCard
from bus.wire.ids import NodeId
from bus.wire.messages.readings import CardReading
from bus.wire.messages.wire import Message
from gateway.view.readings import ClusterReadings


@dataclass(frozen=True, slots=True)
class FleetCard:
    """A node's card and the seconds since it arrived. `linked`: the card came from the node itself,
    not through another node."""

    card: NodeCard
    age_s: float
    linked: bool


class FleetView:
    """The cards of linked nodes, as in `readings`, and the cards that other nodes passed on.
    `forgotten` returns the nodes that were removed from the cluster."""

    def __init__(
        self, readings: ClusterReadings, forgotten: Callable[[], Collection[NodeId]] = tuple
    ) -> None:
        self._readings = readings
        self._forgotten = forgotten
        self._relayed = CardBook(readings.book.own)

    def take(self, message: Message, now: float) -> None:
        """Take a card that another node passed on; ignore any other message."""
        if isinstance(message, CardReading):
            self._relayed.take(message.card, now)

    def cards(self, now: float) -> list[FleetCard]:
        """Return the latest card of each node that has not left: this node's first, then by node
        id."""
        book = self._readings.book
        cards = merge(book.living(now), self._relayed.living(now), book.own)
        gone = self._readings.left.union(self._forgotten())
        return [
            self._entry(node, cards[node], now)
            for node in sorted(cards.keys() - gone, key=lambda node: (node != book.own, node))
        ]

    def _entry(self, node: NodeId, card: NodeCard, now: float) -> FleetCard:
        direct = self._readings.book.get(node)
        linked = direct is not None and direct.card is card
        held = direct if direct is not None and linked else self._relayed[node]
        return FleetCard(card, now - held.arrived_at, linked)
