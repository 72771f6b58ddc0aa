"""The adapters beside models on any node's disk, and which of them a name means.

Pure: the cards are an argument. A name means an adapter only if no model and no derived model has
that name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from bus.wire.cards import AdapterCard, NodeCard, model_named
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.derived import DerivedModel
from gateway.requests import routing


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """A name that ends in an adapter's name: the model, the adapter, and the names of all adapters
    of that model."""

    model: ModelId
    adapter: str
    beside: frozenset[str]

    @property
    def is_there(self) -> bool:
        """Return whether the model has it."""
        return self.adapter in self.beside


class AdapterBook:
    """The adapters of all models, from the nodes' cards."""

    def __init__(self, cards: Callable[[], Iterable[NodeCard]]) -> None:
        self._cards = cards

    def known(self) -> dict[ModelId, dict[str, AdapterCard]]:
        """Return the adapters by model and name; the first node's card counts."""
        adapters: defaultdict[ModelId, dict[str, AdapterCard]] = defaultdict(dict)
        for card in self._cards():
            for model in card.models:
                for adapter in model.adapters:
                    adapters[model.model].setdefault(adapter.name, adapter)
        return dict(adapters)

    def beside(self, model: ModelId) -> dict[str, AdapterCard]:
        """Return the adapters of one model, by name."""
        return self.known().get(model, {})

    def nodes_with(self, model: ModelId, adapter: str) -> set[NodeId]:
        """Return the nodes with a model and an adapter of that name on their disk."""
        return {
            card.node
            for card in self._cards()
            for listed in card.models
            if listed.model == model and any(adapter == own.name for own in listed.adapters)
        }

    def meant(
        self, name: str, models: Collection[ModelId], derived: DerivedModel | None
    ) -> str | None:
        """Return the adapter that a client's name means, even if its model lacks it. A derived
        model's name means its own adapter. None if the name means no adapter."""
        if derived is not None:
            return derived.adapter or None
        if model_named(name, models) is not None:
            return None
        adapted = self.named(name, models)
        return None if adapted is None else adapted.adapter

    def named(self, name: str, models: Collection[ModelId]) -> NamedAdapter | None:
        """Return the adapter that a name `MODEL:ADAPTER` of one of these models means; else
        None."""
        adapters = self.known()
        pair = routing.adapter_named(name, models, adapters)
        if pair is None:
            return None
        model, adapter = pair
        return NamedAdapter(model, adapter, frozenset(adapters[model]))
