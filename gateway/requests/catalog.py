"""Talks to the bus client: which models and instances the cluster has now, and which to ask.

Models are those on disk anywhere and those that instances hold. Nothing is kept here: every
answer is made of the mirrored state, the readings, and what this process has open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from bus.client import BusClient
from bus.wire.cards import ModelCard, model_named, passed_over_named
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId
from bus.wire.instances import Instance
from bus.wire.messages.derived import DerivedModel, derived_named, plain_name
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.requests import GenerationRequest
from gateway.cluster.pulling import demanded_repository, known_repository
from gateway.cluster.readings import ClusterReadings
from gateway.dialects.faults import (
    HttpFaultRaised,
    makes_no_such,
    of_refusal,
    unknown_adapter,
    unknown_model,
)
from gateway.requests import routing
from gateway.requests.adapters import AdapterBook
from gateway.runners.pool import RunnerClients

KNOWN_S = 3.0
"""A starting process lets its first requests wait this long for the state and the cards."""
KNOWN_LOOK_S = 0.02
READY_LOOK_S = 0.05
Tried = Collection[tuple[InstanceId, int]]
"""(instance, generation) pairs."""


class ModelCatalog:
    """The models and instances of the cluster, as this process knows them."""

    def __init__(
        self,
        bus: BusClient,
        readings: ClusterReadings,
        clients: RunnerClients,
        pull_names: Mapping[str, str] | None = None,
        pull_on_demand: Sequence[str] = (),
    ) -> None:
        self._bus = bus
        self.readings = readings
        self._clients = clients
        self.adapters = AdapterBook(lambda: readings.cards(self._now()))
        self._pull_names = pull_names or {}
        self._pull_on_demand = pull_on_demand

    @property
    def known(self) -> bool:
        """Return whether enough was heard to say that a model does not exist."""
        return self._bus.mirror.live and self.readings.has_cards

    async def wait_known(self) -> None:
        """Wait until it can be said which models exist, just after the start of the process.

        Raises HttpFaultRaised (503) after `KNOWN_S` in which nothing at all was heard.
        """
        try:
            async with asyncio.timeout(KNOWN_S):
                while not self.known:
                    await asyncio.sleep(KNOWN_LOOK_S)
        except TimeoutError:
            if self._bus.mirror.live or self.readings.cards(self._now()):
                return
            refusal = Refusal(
                reason="pending",
                message="the gateway has no cluster state yet; see `shoal status`",
                retry_after_s=2.0,
            )
            raise HttpFaultRaised(of_refusal(refusal)) from None

    def cards(self) -> dict[ModelId, ModelCard]:
        """Return the cards of the models on disk, by model."""
        return self.readings.models(self._now())

    def names(self) -> set[ModelId]:
        """Return the models on disk, and those that instances hold."""
        instances = self._bus.state.instances.values()
        return {instance.model for instance in instances if instance.serves} | set(self.cards())

    def named(self, name: str, *, or_pulled: bool = False) -> ModelId:
        """Return the model that a client's name means, of an adapter its model, of a derived model
        that which answers; with `or_pulled` also one that is nowhere, and that a request for it has
        pulled. Raises HttpFaultRaised (404) for none."""
        names = self.names()
        derived = self.derived(name)
        found = model_named(name if derived is None else derived.base, names)
        if found is not None:
            return found
        pulled = known_repository(name, self._pull_names)
        if pulled is not None and pulled in names:
            return pulled
        adapted = self.adapters.named(name, names)
        if adapted is not None and adapted.is_there:
            return adapted.model
        wanted = (
            demanded_repository(name, self._pull_names, self._pull_on_demand) if or_pulled else None
        )
        if wanted is not None and adapted is None:
            return wanted
        seen = passed_over_named(name, self.readings.passed_over(self._now()))
        if adapted is not None and seen is None:
            raise HttpFaultRaised(
                unknown_adapter(name, adapted.model, adapted.adapter, adapted.beside)
            )
        there = names | {one.name for one in self.derived_here()}
        raise HttpFaultRaised(unknown_model(name, sorted(there), seen))

    def derived(self, name: str) -> DerivedModel | None:
        """Return the derived model that a client's name means; None where it is none's, or that of
        a model on disk."""
        found = derived_named(name, self._bus.state.derived)
        if found is None:
            found = alias_named(name, self.cards())
        return None if found is None or found.name in self.names() else found

    def derived_here(self) -> list[DerivedModel]:
        """Return the derived models that can be asked, by name."""
        names = self.names()
        derived = {**aliases_in(self.cards()), **self._bus.state.derived}
        found = (derived[name] for name in sorted(derived))
        return [one for one in found if one.base in names and one.name not in names]

    def check_makes(self, model: ModelId, requests: Iterable[GenerationRequest]) -> None:
        """Raise HttpFaultRaised (400) where the model is known to make no such answers: an
        embedding model no text, and a text model no vectors."""
        cards = self.cards()
        if (card := cards.get(model)) is None:
            return
        wanted = {
            "embedding" if request.prompt.kind == "inputs" else "text" for request in requests
        }
        if wanted - {card.makes}:
            others = [str(one.model) for one in cards.values() if one.makes == "embedding"]
            raise HttpFaultRaised(makes_no_such(model, card.makes, sorted(others)))

    def may_think(self, name: str) -> bool:
        """Return whether the model of a client's name may think before it answers: not where its
        card is known, and tells of no thinking."""
        cards = self.cards()
        model = model_named(name, set(cards))
        return model is None or "thinking" in cards[model].capabilities

    def card_here(self, model: ModelId) -> ModelCard | None:
        """Return the card of a model on this node's own disk; None where it is not there."""
        own = self._bus.speaker.node
        nodes = (card for card in self.readings.cards(self._now()) if card.node == own)
        return next((one for node in nodes for one in node.models if one.model == model), None)

    def serving(self) -> list[RunnerReading]:
        """Return the readings of lead runners whose generation the state still has."""
        return self.readings.serving(self._bus.state.instances, self._now())

    def ready(self, model: ModelId, tried: Tried = ()) -> list[Instance]:
        """Return the model's instances that may take a request now, but for those tried."""
        return routing.ready_instances(self._bus.state.instances.values(), model, tried)

    def choose(
        self, request: GenerationRequest, tried: Tried, affinity: str = ""
    ) -> Instance | None:
        """Return the instance to ask, None where none is ready that was not tried; requests of one
        `affinity` have one, as far as work goes."""
        ready = self.ready(request.model, tried)
        if request.adapter is not None:
            nodes = self.adapters.nodes_with(request.model, request.adapter)
            ready = [one for one in ready if one.shards[0].node in nodes] or ready
        loads = {one.instance: self._load(one) for one in ready}
        return routing.choose(ready, loads, routing.affinity_of(request, affinity))

    def has_place(self, model: ModelId, tried: Tried) -> bool:
        """Return whether a ready instance that was not tried has a row or a place in its queue
        left, as far as is known here."""
        return any(not self._load(one).full for one in self.ready(model, tried))

    def given_up(self, model: ModelId) -> Refusal | None:
        """Return why the model will not be loaded: the holder gave all its copies up. That what is
        pinned leaves no room is the holder's to say, of what is so when it is asked."""
        why = routing.given_up(self._bus.state.instances.values(), model)
        if why is None:
            return None
        message = f"{model} cannot be loaded: {why}"
        facts = {"given_up": True}
        return Refusal(reason="not_ready", message=message, retry_after_s=30.0, facts=facts)

    def any_suspect(self, model: ModelId) -> bool:
        """Return whether one of the model's ready instances is late with what it owes."""
        return any(self._clients.suspect(one.instance) for one in self.ready(model))

    async def wait_ready(self, model: ModelId, patience_s: float) -> None:
        """Wait until an instance of the model is ready.

        Raises HttpFaultRaised (503) when it cannot be loaded, or is not after `patience_s`.
        """
        since_at = self._now()
        while not self.ready(model):
            waited_s = self._now() - since_at
            refusal = not_loaded(model, waited_s) if waited_s >= patience_s else None
            refusal = refusal or self.given_up(model)
            if refusal is not None:
                raise HttpFaultRaised(of_refusal(refusal))
            await asyncio.sleep(READY_LOOK_S)

    def _load(self, instance: Instance) -> routing.InstanceLoad:
        reading = self.readings.runner_of(instance, self._now())
        rows = max(routing.reading_rows(reading), self._clients.open_at(instance.instance))
        suspect = self._clients.suspect(instance.instance)
        return routing.InstanceLoad(rows, suspect, not routing.has_place(reading, rows))

    def _now(self) -> float:
        return self._bus.reactor.now()


def not_loaded(model: ModelId, waited_s: float, why: str = "") -> Refusal:
    """Return the refusal for a wait for a model that was not loaded; `why`: for what it waited."""
    message = f"{model} was not loaded within {waited_s:.0f} s; {why or 'try again soon'}"
    return Refusal(reason="pending", message=message, retry_after_s=5.0)


def alias_named(name: str, cards: Mapping[ModelId, ModelCard]) -> DerivedModel | None:
    """Return the alias that a client's name means, as a copy of its model; None for none. Asked at
    each request: of cards that have no such name nothing is made."""
    folded = plain_name(name).casefold()
    meant = {
        model: card
        for model, card in cards.items()
        if any(alias.casefold() == folded for alias in card.aliases)
    }
    return derived_named(name, aliases_in(meant)) if meant else None


def aliases_in(cards: Mapping[ModelId, ModelCard]) -> dict[str, DerivedModel]:
    """Return the names that models' own cards give them, as copies of the models."""
    return {
        alias: _alias_of(alias, model, card.card_at_s)
        for model, card in sorted(cards.items(), reverse=True)
        for alias in card.aliases
    }


@lru_cache(1024)
def _alias_of(alias: str, model: ModelId, made_at_s: float) -> DerivedModel:
    return DerivedModel(name=ModelId(alias), base=model, made_at_s=made_at_s)
