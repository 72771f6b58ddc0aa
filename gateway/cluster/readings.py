"""What one HTTP process knows of the cluster beside the state: cards and readings.

Readings that were not renewed within their time are forgotten when asked for; a card outlives
its own time here as long as its node is in the state, for weights do not move by themselves.
Talks only to the bus client that it is given.
"""

from __future__ import annotations

from typing import TypeVar

from bus.client import BusClient
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.codec import Envelope
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import (
    CardReading,
    DemandReading,
    LinkReading,
    NodeReading,
    RunnerReading,
    WeightsReading,
)

Key = TypeVar("Key")
Reading = TypeVar("Reading")
READING_TTL_S = 15.0
CARD_TTL_S = 600.0
LINK_TTL_S = 600.0
TEST_TTL_S = 600.0
HEARD = (
    "card",
    "reading.node",
    "reading.runner",
    "reading.demand",
    "reading.peers",
    "reading.link",
    "reading.weights",
    "reading.collective",
)


class ClusterReadings:
    """Latest cards and readings, with when they were heard."""

    def __init__(self, bus: BusClient) -> None:
        self._bus = bus
        self._cards: dict[NodeId, tuple[NodeCard, float]] = {}
        self._nodes: dict[NodeId, tuple[NodeReading, float]] = {}
        self._runners: dict[tuple[NodeId, str], tuple[RunnerReading, float]] = {}
        self._demands: dict[tuple[NodeId, str], tuple[DemandReading, float]] = {}
        self._peers: dict[NodeId, tuple[PeersReading, float]] = {}
        self._weights: dict[NodeId, tuple[WeightsReading, float]] = {}
        self._links: dict[NodeId, tuple[LinkReading, float]] = {}
        self._tests: dict[tuple[InstanceId, int], tuple[CollectiveReading, float]] = {}
        for prefix in HEARD:
            bus.hear(prefix, self._heard)

    @property
    def known(self) -> bool:
        """Whether enough was heard to say that a model does not exist."""
        return self._bus.mirror.live and bool(self._cards)

    def cards(self) -> list[NodeCard]:
        """Cards of nodes, by node id."""
        now = self._bus.reactor.now()
        fresh = [card for card, at in self._cards.values() if now - at < CARD_TTL_S]
        return sorted(fresh, key=lambda card: str(card.node))

    def models(self) -> dict[ModelId, ModelCard]:
        """Models on disk anywhere; the first node's card of each."""
        found: dict[ModelId, ModelCard] = {}
        for card in self.cards():
            for model in card.models:
                found.setdefault(model.model, model)
        return found

    def model_names(self) -> set[ModelId]:
        """Models on disk, and those that instances hold."""
        instances = self._bus.state.instances.values()
        held = {one.model for one in instances if one.test is None}
        return held | set(self.models())

    def runners(self) -> list[RunnerReading]:
        """Fresh readings of runners."""
        return self._fresh(self._runners)

    def serving(self) -> list[RunnerReading]:
        """Those of runners whose generation the state still has: a dead one's last reading
        stays fresh for a while."""
        instances = self._bus.state.instances
        return [
            one
            for one in self.runners()
            if one.instance is not None
            and (held := instances.get(one.instance)) is not None
            and held.generation == one.generation
        ]

    def runner_of(self, instance: InstanceId) -> RunnerReading | None:
        """The reading of an instance's runner."""
        return next((one for one in self.serving() if one.instance == instance), None)

    def nodes(self) -> list[tuple[NodeReading, float]]:
        """Each node's latest reading, however old, and its age in seconds."""
        now = self._bus.reactor.now()
        return [(reading, now - at) for reading, at in self._nodes.values()]

    def peers(self) -> list[PeersReading]:
        """Fresh readings of whom nodes know."""
        return self._fresh(self._peers)

    def demands(self) -> list[DemandReading]:
        """Fresh readings of demand, from all gateway processes that are heard."""
        return self._fresh(self._demands)

    def weights(self) -> list[WeightsReading]:
        """Fresh readings of what nodes fetch."""
        return self._fresh(self._weights)

    def links(self) -> list[LinkReading]:
        """What nodes measured towards each other."""
        return self._fresh(self._links, LINK_TTL_S)

    def test_of(self, instance: InstanceId) -> list[CollectiveReading]:
        """What the ranks of a collective test have said, for ten minutes after their end."""
        now = self._bus.reactor.now()
        self._tests = {k: v for k, v in self._tests.items() if now - v[1] < TEST_TTL_S}
        return [reading for (name, _), (reading, _) in self._tests.items() if name == instance]

    def _fresh(
        self, readings: dict[Key, tuple[Reading, float]], ttl_s: float = READING_TTL_S
    ) -> list[Reading]:
        now = self._bus.reactor.now()
        for key in [key for key, (_, at) in readings.items() if now - at >= ttl_s]:
            del readings[key]
        return [reading for reading, _ in readings.values()]

    def _heard(self, topic: str, envelope: Envelope) -> None:
        now = self._bus.reactor.now()
        match envelope.message:
            case CardReading(card=card):
                known = self._cards.get(card.node)
                if known is None or card.announced_at_s >= known[0].announced_at_s:
                    self._cards[card.node] = (card, now)
            case NodeReading() as reading:
                self._nodes[reading.node] = (reading, now)
            case RunnerReading() as reading:
                self._runners[(reading.node, reading.process)] = (reading, now)
            case DemandReading() as reading:
                self._demands[(reading.node, reading.process)] = (reading, now)
            case PeersReading() as reading:
                self._peers[reading.node] = (reading, now)
            case WeightsReading() as reading:
                self._weights[reading.node] = (reading, now)
            case LinkReading() as reading:
                self._links[reading.node] = (reading, now)
            case CollectiveReading() as reading:
                self._tests[(reading.instance, reading.rank)] = (reading, now)
            case _:
                return
