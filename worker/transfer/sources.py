"""Which nodes have which models, by their cards, and where their stores are reached.

Pure: time arrives as `now`. A card counts for as long as it says; of two of one node the newer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bus.wire.cards import ModelCard, NodeCard, supersedes
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
    """What is known of weights that do not lie here.

    `cards` are those of other nodes: complete once `has_heard`. `fetches` are under way, or have
    failed for the reason given; of those that `arrived` more layers may be wanted. Those `held` are
    wanted though no slot waits for them.
    """

    cards: Mapping[NodeId, NodeCard]
    has_heard: bool
    fetches: Mapping[ModelId, Refusal | None]
    arrived: frozenset[ModelId]
    held: frozenset[ModelId] = frozenset()

    def offered(self, model: ModelId) -> ModelCard | None:
        """Return what other nodes say of a model on their disks, the first of them; None where no
        node has the whole of it."""
        cards = (one for _, card in sorted(self.cards.items()) for one in card.models)
        return next((one for one in cards if one.model == model), None)


NOTHING_ELSEWHERE = WeightsElsewhere({}, True, {}, frozenset())


class Sources:
    """Other nodes' cards as `me` heard them."""

    def __init__(self, me: NodeId) -> None:
        self.me = me
        self.cards: dict[NodeId, tuple[NodeCard, float]] = {}
        self._storage: dict[NodeId, tuple[StorageReading, float]] = {}

    def heard(self, card: NodeCard, now: float) -> None:
        """Take in a card; one's own and older ones change nothing."""
        known, _ = self.cards.get(card.node, (None, now))
        if card.node != self.me and supersedes(card, known):
            self.cards[card.node] = (card, now)

    def heard_storage(self, reading: StorageReading, now: float) -> None:
        """Take in what a node says of its store."""
        self._storage[reading.node] = (reading, now)

    def keeping_all(self, now: float) -> frozenset[NodeId]:
        """Return the other nodes that keep everything (`store = true`)."""
        told = self._storage.items()
        fresh = {node for node, (one, at) in told if one.keeps_all and now - at <= STORAGE_TTL_S}
        return frozenset(fresh & self.living(now).keys())

    def stores_with(
        self, model: ModelId, now: float, *, preferred: bool = False
    ) -> list[StoreAddress]:
        """Return where the model can be fetched, by node; each node's addresses best first.
        `preferred`: only from nodes that keep everything, where one of those has it."""
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
        """Return the cards that count now."""
        return {node: card for node, (card, at) in self.cards.items() if now - at <= card.ttl_s}


def is_store_address(text: str) -> bool:
    """Return whether it is `tcp://host:port`, and nothing else that a socket could be led to."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[1]) < 65536
