"""Talks to the bus client: knows the models and instances of the cluster, and chooses the instance
that gets a request.

A model exists if it is on the disk of any node or if an instance serves it. This module caches
nothing. Each result is computed from the mirrored cluster state, the latest readings (measurements
that other processes publish), and the open requests of this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from bus.client import BusClient
from bus.wire.cards import ModelCard, model_named, parts_text, passed_over_named
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId
from bus.wire.instances import Instance
from bus.wire.messages.derived import DerivedModel, derived_named, plain_name
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.requests import GenerationRequest
from gateway.control.pulling import demanded_repository, known_repository
from gateway.dialects.faults import (
    HttpFault,
    HttpFaultRaised,
    makes_no_such,
    of_refusal,
    unknown_adapter,
    unknown_model,
)
from gateway.requests import routing
from gateway.requests.adapters import AdapterBook
from gateway.runners.pool import RunnerClients
from gateway.view.readings import ClusterReadings

KNOWN_S = 3.0
"""How long the first requests of a starting process wait for the cluster state and the node
cards."""
KNOWN_LOOK_S = 0.02
READY_LOOK_S = 0.05
Tried = Collection[tuple[InstanceId, int]]
"""(instance, generation) pairs that a request has already been sent to. A generation is one attempt
to load an instance."""


class ModelCatalog:
    """The cluster's models and instances as this process sees them."""

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
        self.adapters = AdapterBook(lambda: readings.cards(self._bus.reactor.now()))
        self._pull_names = pull_names or {}
        self._pull_on_demand = pull_on_demand

    @property
    def known(self) -> bool:
        """Return whether this process has the cluster state and the node cards. Without them it
        cannot say that a model does not exist."""
        return self._bus.mirror.live and bool(self.readings.book)

    async def wait_known(self) -> None:
        """Wait until this process knows which models exist. Only requests just after its start have
        to wait.

        Raises HttpFaultRaised (503) if neither the state nor any card arrived within `KNOWN_S`.
        """
        try:
            async with asyncio.timeout(KNOWN_S):
                while not self.known:
                    await asyncio.sleep(KNOWN_LOOK_S)
        except TimeoutError:
            if self._bus.mirror.live or self.readings.cards(self._bus.reactor.now()):
                return
            refusal = Refusal(
                reason="pending",
                message="the gateway has no cluster state yet; see `shoal status`",
                retry_after_s=2.0,
            )
            raise HttpFaultRaised(of_refusal(refusal)) from None

    def cards(self) -> dict[ModelId, ModelCard]:
        """Return the model cards of all models that any node has on disk."""
        return self.readings.models(self._bus.reactor.now())

    def names(self) -> set[ModelId]:
        """Return all models that are on the disk of a node or that an instance serves."""
        instances = self._bus.state.instances.values()
        return {instance.model for instance in instances if instance.serves} | set(self.cards())

    def plain(self, name: str) -> ModelCard | None:
        """Return the card of the model with exactly this name. None if there is no such model. Also
        None if the cluster has any derived models or aliases, because the name might mean one of
        these."""
        cards = self.cards()
        if self._bus.state.derived or any(card.aliases for card in cards.values()):
            return None
        return cards.get(ModelId(name))

    def named(self, name: str, *, or_pulled: bool = False) -> ModelId:
        """Return the model that a client's name means. An adapter's name means its model, and a
        derived model's name means its base. With `or_pulled`, also return a model that no node has
        on disk but that a request is allowed to pull. Raises HttpFaultRaised (404) if no model
        matches."""
        names = self.names()
        derived = self.derived(name)
        model = model_named(name if derived is None else derived.base, names)
        if model is not None:
            return model
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
        seen = passed_over_named(name, self.readings.passed_over(self._bus.reactor.now()))
        if adapted is not None and seen is None:
            raise HttpFaultRaised(
                unknown_adapter(name, adapted.model, adapted.adapter, adapted.beside)
            )
        plain = ModelId(plain_name(name))
        if held := parts_text(plain, self.readings.cards(self._bus.reactor.now())):
            text = f"the nodes lack some layers of {plain}: {held}; use `shoal pull --split`"
            raise HttpFaultRaised(HttpFault(404, "model_not_found", text, field="model"))
        there = names | {model.name for model in self.derived_here()}
        raise HttpFaultRaised(unknown_model(name, sorted(there), seen))

    def derived(self, name: str) -> DerivedModel | None:
        """Return the derived model or alias that a client's name means. None if no derived model or
        alias matches, or if a model on disk has that name."""
        derived = derived_named(name, self._bus.state.derived)
        if derived is None:
            derived = alias_named(name, self.cards())
        return None if derived is None or derived.name in self.names() else derived

    def derived_here(self) -> list[DerivedModel]:
        """Return the derived models and aliases whose base exists, ordered by name."""
        names = self.names()
        derived = {**aliases_in(self.cards()), **self._bus.state.derived}
        models = (derived[name] for name in sorted(derived))
        return [model for model in models if model.base in names and model.name not in names]

    def check_makes(self, model: ModelId, requests: Iterable[GenerationRequest]) -> None:
        """Raise HttpFaultRaised (400) if the model cannot answer these requests. A text model makes
        only text, an embedding model only vectors, and a reranker only scores."""
        cards = self.cards()
        if (card := cards.get(model)) is None:
            return
        for request in requests:
            if (wanted := request.wants) != card.makes:
                others = sorted(
                    str(other.model) for other in cards.values() if other.makes == wanted
                )
                raise HttpFaultRaised(makes_no_such(model, card.makes, wanted, others))

    def may_think(self, name: str) -> bool:
        """Return whether a model can think before it answers; True if the model has no card."""
        cards = self.cards()
        model = model_named(name, set(cards))
        return model is None or "thinking" in cards[model].capabilities

    def card_here(self, model: ModelId) -> ModelCard | None:
        """Return the card of a model on this node's own disk, or None."""
        own = self._bus.speaker.node
        nodes = (card for card in self.readings.cards(self._bus.reactor.now()) if card.node == own)
        return next((card for node in nodes for card in node.models if card.model == model), None)

    def serving(self) -> list[RunnerReading]:
        """Return the readings of rank 0 of each instance, if the cluster state still has that
        instance in the same generation, that is the same load attempt."""
        return self.readings.serving(self._bus.state.instances, self._bus.reactor.now())

    def ready(self, model: ModelId, tried: Tried = ()) -> list[Instance]:
        """Return the model's instances that accept requests now, except those in `tried`."""
        return routing.ready_instances(self._bus.state.instances.values(), model, tried)

    def choose(
        self, request: GenerationRequest, tried: Tried, affinity: str = ""
    ) -> Instance | None:
        """Return the instance that gets the request; None if every ready instance has been tried.
        Requests with the same `affinity` get the same instance, unless that instance has too much
        work."""
        ready = self.ready(request.model, tried)
        if len(ready) < 2:
            return ready[0] if ready else None
        if request.adapter is not None:
            nodes = self.adapters.nodes_with(request.model, request.adapter)
            ready = [instance for instance in ready if instance.shards[0].node in nodes] or ready
        loads = {instance.instance: self._load(instance) for instance in ready}
        return routing.choose(ready, loads, routing.affinity_of(request, affinity))

    def has_place(self, model: ModelId, tried: Tried) -> bool:
        """Return whether a ready instance that is not in `tried` can take a request: its latest
        reading shows a free row or a free place in its queue."""
        return any(not self._load(instance).full for instance in self.ready(model, tried))

    def given_up(self, model: ModelId) -> Refusal | None:
        """Return a refusal if the leader gave up on all instances of the model. This method does
        not check whether pinned models leave enough memory, because only the leader knows that."""
        why = routing.given_up(self._bus.state.instances.values(), model)
        if why is None:
            return None
        message = f"{model} cannot be loaded: {why}"
        facts = {"given_up": True}
        return Refusal(reason="not_ready", message=message, retry_after_s=30.0, facts=facts)

    def any_suspect(self, model: ModelId) -> bool:
        """Return whether one of the model's ready instances is late with a reply."""
        return any(self._clients.suspect(instance.instance) for instance in self.ready(model))

    async def wait_ready(self, model: ModelId, patience_s: float) -> None:
        """Wait until an instance of the model is ready.

        Raises HttpFaultRaised (503) if the model cannot be loaded, or if no instance is ready after
        `patience_s`.
        """
        since_at = self._bus.reactor.now()
        while not self.ready(model):
            waited_s = self._bus.reactor.now() - since_at
            refusal = not_loaded(model, waited_s) if waited_s >= patience_s else None
            refusal = refusal or self.given_up(model)
            if refusal is not None:
                raise HttpFaultRaised(of_refusal(refusal))
            await asyncio.sleep(READY_LOOK_S)

    def _load(self, instance: Instance) -> routing.InstanceLoad:
        reading = self.readings.runner_of(instance, self._bus.reactor.now())
        rows = max(routing.reading_rows(reading), self._clients.open_at(instance.instance))
        suspect = self._clients.suspect(instance.instance)
        return routing.InstanceLoad(rows, suspect, not routing.has_place(reading, rows))


def whole_model(catalog: ModelCatalog, name: str, now: float) -> ModelId:
    """Return the model that a client's name means, if a node has all of its files. Raises
    HttpFaultRaised: 404 if no model matches, 409 if nodes have only some of its layers each."""
    model, nodes = catalog.named(name), catalog.readings.cards(now)
    held = parts_text(model, nodes)
    if held and not any(card.model == model for node in nodes for card in node.models):
        text = f"no node has all of {model}: {held}; first pull all of it with `shoal pull`"
        raise HttpFaultRaised(HttpFault(409, "conflict", text, field="model"))
    return model


def not_loaded(model: ModelId, waited_s: float, why: str = "") -> Refusal:
    """Return the refusal of a request whose model was not loaded in time. `why` says what the load
    was waiting for."""
    message = f"{model} was not loaded within {waited_s:.0f} s; {why or 'try again soon'}"
    return Refusal(reason="pending", message=message, retry_after_s=5.0)


def alias_named(name: str, cards: Mapping[ModelId, ModelCard]) -> DerivedModel | None:
    """Return the alias that a client's name means, as a derived model; None if no card has that
    alias. This function runs for each request, so it converts only cards with that alias."""
    folded = plain_name(name).casefold()
    meant = {
        model: card
        for model, card in cards.items()
        if any(alias.casefold() == folded for alias in card.aliases)
    }
    return derived_named(name, aliases_in(meant)) if meant else None


def aliases_in(cards: Mapping[ModelId, ModelCard]) -> dict[str, DerivedModel]:
    """Return each alias of the cards as a derived model without settings. If several models have
    the same alias, the alphabetically first model gets it."""
    return {
        alias: _alias_of(alias, model, card.card_at_s)
        for model, card in sorted(cards.items(), reverse=True)
        for alias in card.aliases
    }


@lru_cache(1024)
def _alias_of(alias: str, model: ModelId, made_at_s: float) -> DerivedModel:
    return DerivedModel(name=ModelId(alias), base=model, made_at_s=made_at_s)
