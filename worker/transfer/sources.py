"""The nodes that have a model, according to their node cards, and the addresses at which they serve
its files.

Pure: time arrives as `now`. `bus.membership.card_book` has the rules for which cards count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bus.membership.card_book import CardBook
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.weights import StorageReading
from worker.transfer.source import StoreAddress

_ADDRESS = re.compile(
    r"tcp://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,64}(?:%[\w.-]{1,32})?\]):(\d{1,5})"
)
STORAGE_TTL_S = 120.0


@dataclass(frozen=True, slots=True)
class WeightsElsewhere:
    """Weights on other nodes, and this node's fetches of them.

    `cards` are the node cards of other nodes; they are complete once `has_heard`. `fetches` maps
    models to None (running) or to the reason of a failure. Models in `arrived` have been fetched,
    but more of their layers may be wanted. Models in `held` are wanted although no slot waits for
    them.
    """

    cards: Mapping[NodeId, NodeCard]
    has_heard: bool
    fetches: Mapping[ModelId, Refusal | None]
    arrived: frozenset[ModelId]
    held: frozenset[ModelId] = frozenset()

    def offered(self, model: ModelId) -> ModelCard | None:
        """Return the first of other nodes' cards for the model; None if no node has all of it."""
        cards = (model_card for _, card in sorted(self.cards.items()) for model_card in card.models)
        return next((model_card for model_card in cards if model_card.model == model), None)


NOTHING_ELSEWHERE = WeightsElsewhere({}, True, {}, frozenset())


class Sources:
    """The node cards of other nodes, as this node (`me`) received them."""

    def __init__(self, me: NodeId) -> None:
        self.me = me
        self.cards = CardBook()
        self._storage: dict[NodeId, tuple[StorageReading, float]] = {}

    def take_card(self, card: NodeCard, now: float) -> None:
        """Store a node card. This node's own card and outdated cards change nothing."""
        if card.node != self.me:
            self.cards.take(card, now)

    def take_storage(self, reading: StorageReading, now: float) -> None:
        """Store a node's report about its models on disk."""
        self._storage[reading.node] = (reading, now)

    def keeping_all(self, now: float) -> frozenset[NodeId]:
        """Return the other nodes that keep everything (`store = true`)."""
        reports = self._storage.items()
        fresh = {
            node
            for node, (reading, at) in reports
            if reading.keeps_all and now - at <= STORAGE_TTL_S
        }
        return frozenset(fresh & self.living(now).keys())

    def stores_with(
        self, model: ModelId, now: float, *, preferred: bool = False
    ) -> list[StoreAddress]:
        """Return the addresses from which the model can be fetched, by node; each node's best
        first. `preferred`: return only nodes that keep everything, if such a node has the model."""
        living, keeping = self.living(now), self.keeping_all(now)
        having = {n for n, card in living.items() if any(m.model == model for m in card.models)}
        first = having & keeping if preferred else frozenset[NodeId]()
        return [
            StoreAddress(node, address)
            for node, card in sorted(living.items())
            if node in (first or having)
            for address in card.weights_addresses
            if is_store_address(address)
        ]

    def living(self, now: float) -> dict[NodeId, NodeCard]:
        return self.cards.living(now)


def is_store_address(text: str) -> bool:
    """Return whether an address has the form `tcp://host:port`. Other transports are refused."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[1]) < 65536
