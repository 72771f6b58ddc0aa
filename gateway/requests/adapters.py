"""Finds the adapters of the models on any node's disk, and the adapter that a client's name means.

An adapter (LoRA) belongs to one model, and its name is `MODEL:ADAPTER`. Pure: the node cards, which
list the models of each node, are an argument. A name means an adapter only if no model and no
derived model has that name.
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
    """A name of the form `MODEL:ADAPTER`, split in two. `beside` has the names of all adapters of
    the model; `adapter` need not be among them."""

    model: ModelId
    adapter: str
    beside: frozenset[str]

    @property
    def is_there(self) -> bool:
        """Return whether the model has an adapter of this name."""
        return self.adapter in self.beside


class AdapterBook:
    """Looks up the adapters of all models in the latest node cards."""

    def __init__(self, cards: Callable[[], Iterable[NodeCard]]) -> None:
        self._cards = cards

    def by_model(self) -> dict[ModelId, dict[str, AdapterCard]]:
        """Return the adapters of all models, by model and name. If several nodes have an adapter of
        the same name, the first node's entry is returned."""
        adapters: defaultdict[ModelId, dict[str, AdapterCard]] = defaultdict(dict)
        for card in self._cards():
            for model in card.models:
                for adapter in model.adapters:
                    adapters[model.model].setdefault(adapter.name, adapter)
        return dict(adapters)

    def beside(self, model: ModelId) -> dict[str, AdapterCard]:
        """Return the adapters of one model, by name."""
        return self.by_model().get(model, {})

    def nodes_with(self, model: ModelId, adapter: str) -> set[NodeId]:
        """Return the nodes that have both the model and its adapter of this name on disk."""
        return {
            card.node
            for card in self._cards()
            for listed in card.models
            if listed.model == model and any(adapter == own.name for own in listed.adapters)
        }

    def find(
        self, name: str, models: Collection[ModelId], derived: DerivedModel | None
    ) -> str | None:
        """Return the adapter that a client's name means. The adapter is returned even if the model
        does not have it. The name of a derived model means the adapter of that derived model. None
        if the name means no adapter."""
        if derived is not None:
            return derived.adapter or None
        if model_named(name, models) is not None:
            return None
        adapted = self.named(name, models)
        return None if adapted is None else adapted.adapter

    def named(self, name: str, models: Collection[ModelId]) -> NamedAdapter | None:
        """Split a name `MODEL:ADAPTER`. None if `MODEL` is none of `models`, or has no adapters."""
        adapters = self.by_model()
        pair = routing.adapter_named(name, models, adapters)
        if pair is None:
            return None
        model, adapter = pair
        return NamedAdapter(model, adapter, frozenset(adapters[model]))
