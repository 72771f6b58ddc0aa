"""Which nodes have which models, by their cards, and where their stores are reached.

Pure: time arrives as `now`. A card counts for as long as it says; of two of one node the newer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from worker.models.layer_bytes import Range
from worker.transfer.source import StoreAddress

_ADDRESS = re.compile(
    r"tcp://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,64}(?:%[\w.-]{1,32})?\]):(\d{1,5})"
)


@dataclass(frozen=True, slots=True)
class WeightsElsewhere:
    """What is known of weights that do not lie here.

    `announced` are the models on other nodes' disks, `announced_parts` the spans of layers that
    they have of others, `cards` what they say of theirs: complete once `has_heard`. `fetches` are
    under way, or have failed for the reason given; of those that `arrived` more layers may be
    wanted.
    """

    announced: Mapping[NodeId, frozenset[ModelId]] = field(
        default_factory=dict[NodeId, frozenset[ModelId]]
    )
    announced_parts: Mapping[NodeId, Mapping[str, frozenset[Range]]] = field(
        default_factory=dict[NodeId, Mapping[str, frozenset[Range]]]
    )
    cards: Mapping[ModelId, ModelCard] = field(default_factory=dict[ModelId, ModelCard])
    has_heard: bool = True
    fetches: Mapping[ModelId, Refusal | None] = field(default_factory=dict[ModelId, Refusal | None])
    arrived: frozenset[ModelId] = frozenset()


NOTHING_ELSEWHERE = WeightsElsewhere()


@dataclass(slots=True)
class Sources:
    """Other nodes' cards as `me` heard them."""

    me: NodeId
    cards: dict[NodeId, tuple[NodeCard, float]] = field(
        default_factory=dict[NodeId, tuple[NodeCard, float]]
    )

    def heard(self, card: NodeCard, now: float) -> None:
        """A card came; one's own and older ones change nothing."""
        known = self.cards.get(card.node)
        if card.node != self.me and (
            known is None or card.announced_at_s >= known[0].announced_at_s
        ):
            self.cards[card.node] = (card, now)

    def announced(self, now: float) -> Mapping[NodeId, frozenset[ModelId]]:
        """The models on each other node's disk."""
        return {
            node: frozenset(model.model for model in card.models)
            for node, card in self._living(now).items()
        }

    def announced_parts(self, now: float) -> Mapping[NodeId, Mapping[str, frozenset[Range]]]:
        """The spans of layers on each other node's disk, of models that it has in part."""
        return {
            node: {str(part.model): frozenset(part.layers) for part in card.parts}
            for node, card in self._living(now).items()
        }

    def cards_of(self, now: float) -> Mapping[ModelId, ModelCard]:
        """What other nodes say of the models on their disks; of several the first node's."""
        found: dict[ModelId, ModelCard] = {}
        for _, card in sorted(self._living(now).items()):
            for model in card.models:
                found.setdefault(model.model, model)
        return found

    def stores_with(self, model: ModelId, now: float) -> list[StoreAddress]:
        """Where the model can be fetched, by node; each node's addresses best first."""
        return [
            StoreAddress(node, address)
            for node, card in sorted(self._living(now).items())
            if any(one.model == model for one in card.models)
            for address in card.weights_addresses
            if is_store_address(address)
        ]

    def _living(self, now: float) -> dict[NodeId, NodeCard]:
        return {node: card for node, (card, at) in self.cards.items() if now - at <= card.ttl_s}


def is_store_address(text: str) -> bool:
    """Whether it is `tcp://host:port`, and nothing else that a socket could be led to."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[1]) < 65536
