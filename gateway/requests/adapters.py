"""The adapters that lie beside models anywhere in the cluster, and which of them a name means.

Pure: the cards are given. A name means an adapter only where no model and no derived model has it.
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
    """What a name means that ends in an adapter's: the model, the adapter, and the names of those
    that the model has."""

    model: ModelId
    adapter: str
    beside: frozenset[str]

    @property
    def is_there(self) -> bool:
        """Return whether the model has it."""
        return self.adapter in self.beside


class AdapterBook:
    """The adapters of all models, as the nodes' cards tell of them now."""

    def __init__(self, cards: Callable[[], Iterable[NodeCard]]) -> None:
        self._cards = cards

    def known(self) -> dict[ModelId, dict[str, AdapterCard]]:
        """Return the adapters by model and name; of each the first node's."""
        found: defaultdict[ModelId, dict[str, AdapterCard]] = defaultdict(dict)
        for card in self._cards():
            for model in card.models:
                for adapter in model.adapters:
                    found[model.model].setdefault(adapter.name, adapter)
        return dict(found)

    def beside(self, model: ModelId) -> dict[str, AdapterCard]:
        """Return the adapters of one model, by name."""
        return self.known().get(model, {})

    def nodes_with(self, model: ModelId, adapter: str) -> set[NodeId]:
        """Return the nodes on whose disk a model lies with an adapter of that name."""
        return {
            card.node
            for card in self._cards()
            for one in card.models
            if one.model == model and any(adapter == own.name for own in one.adapters)
        }

    def meant(
        self, name: str, models: Collection[ModelId], derived: DerivedModel | None
    ) -> str | None:
        """Return the adapter that a client's name means where `models` are there, perhaps one that
        its model has not; of a derived model its own. None for none."""
        if derived is not None:
            return derived.adapter or None
        if model_named(name, models) is not None:
            return None
        adapted = self.named(name, models)
        return None if adapted is None else adapted.adapter

    def named(self, name: str, models: Collection[ModelId]) -> NamedAdapter | None:
        """Return what a name means that is `MODEL:ADAPTER` of one of these models; None for another
        name."""
        known = self.known()
        found = routing.adapter_named(name, models, known)
        if found is None:
            return None
        model, adapter = found
        return NamedAdapter(model, adapter, frozenset(known[model]))
