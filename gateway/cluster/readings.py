"""What one HTTP process knows of the cluster beside the state: cards and readings.

Pure: time arrives as `now`. Readings that were not renewed within their time are forgotten when
asked for; a card outlives its own time here as long as its node is in the state, for weights do
not move by themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from bus.wire.accelerators import HardwareReading
from bus.wire.cards import ModelCard, NodeCard, PassedOver, models_of, supersedes
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import (
    CardReading,
    DemandReading,
    KeyUseReading,
    LinkReading,
    NodeReading,
    PullReading,
    RunnerReading,
    UndoneReading,
    WeightsReading,
)
from bus.wire.messages.weights import StorageReading, VerifyReading
from bus.wire.messages.wire import Message
from bus.wire.pool import PoolReading, PoolWait

Reading = TypeVar("Reading", bound=Message)
READING_TTL_S = 15.0
CARD_TTL_S = 600.0
LINK_TTL_S = 600.0
TEST_TTL_S = 600.0
UNDONE_TTL_S = 86_400.0
KEYS_TTL_S = 604_800.0
POOL_TTL_S = 5.0
STORAGE_TTL_S = 120.0
TOPICS = (
    "card",
    "reading.node",
    "reading.hardware",
    "reading.runner",
    "reading.demand",
    "reading.pool",
    "reading.peers",
    "reading.link",
    "reading.weights",
    "reading.pulls",
    "reading.verifies",
    "reading.storage",
    "reading.collective",
    "reading.undone",
    "reading.keys",
)
"""The beginnings of the topics on which they are heard."""


_KEYS: Mapping[type[Message], Callable[[Any], object]] = {
    NodeReading: attrgetter("node"),
    HardwareReading: attrgetter("node"),
    RunnerReading: attrgetter("node", "process"),
    DemandReading: attrgetter("node", "process"),
    PoolReading: attrgetter("node"),
    PeersReading: attrgetter("node"),
    WeightsReading: attrgetter("node"),
    PullReading: attrgetter("node"),
    VerifyReading: attrgetter("node"),
    StorageReading: attrgetter("node"),
    LinkReading: attrgetter("node"),
    CollectiveReading: attrgetter("instance", "rank"),
    UndoneReading: attrgetter("node"),
    KeyUseReading: attrgetter("node", "process"),
}
"""What tells readings of one type apart; of each, the latest is kept."""


class ClusterReadings:
    """Latest cards and readings, with when they were heard."""

    def __init__(self) -> None:
        self._cards: dict[NodeId, tuple[NodeCard, float]] = {}
        self._left: set[NodeId] = set()
        self._readings: defaultdict[type[Message], dict[Any, tuple[Any, float]]] = defaultdict(dict)

    def heard(self, message: Message, now: float) -> None:
        """Keep a card or a reading; any other message is passed over."""
        if isinstance(message, CardReading):
            card = message.card
            known, _ = self._cards.get(card.node, (None, now))
            if supersedes(card, known):
                self._cards[card.node] = (card, now)
        elif key_of := _KEYS.get(type(message)):
            self._readings[type(message)][key_of(message)] = (message, now)
            if isinstance(message, PeersReading):
                self._left = left_in(self.peers(now))

    @property
    def has_cards(self) -> bool:
        """Return whether any node's card has been heard."""
        return bool(self._cards)

    def cards(self, now: float) -> list[NodeCard]:
        """Return the cards of nodes, by node id. Those of a node that said goodbye are gone with
        it; what lies on one that fell silent is there when it comes back."""
        fresh = [
            card
            for card, at in self._cards.values()
            if now - at < CARD_TTL_S and card.node not in self._left
        ]
        return sorted(fresh, key=lambda card: str(card.node))

    def models(self, now: float) -> dict[ModelId, ModelCard]:
        """Return the models on disk anywhere; the first node's card of each, with what the newest
        `card.toml` of all says to requests."""
        return models_of(self.cards(now))

    def passed_over(self, now: float) -> list[tuple[str, PassedOver]]:
        """Return what lies on disks and is no model, with the names of the nodes."""
        return [(card.name, one) for card in self.cards(now) for one in card.passed_over]

    def runners(self, now: float) -> list[RunnerReading]:
        """Return the fresh readings of runners, of every rank."""
        return self.fresh(RunnerReading, now)

    def serving(self, instances: Mapping[str, Instance], now: float) -> list[RunnerReading]:
        """Return those of lead runners whose generation is among `instances`."""
        return [rank for rank in self.ranks(instances, now) if rank.rank == 0]

    def ranks(self, instances: Mapping[str, Instance], now: float) -> list[RunnerReading]:
        """Return those of all ranks whose generation is among `instances`: a dead runner's last
        reading stays fresh for a while."""
        return [
            runner
            for runner in self.runners(now)
            if runner.instance is not None
            and (held := instances.get(runner.instance)) is not None
            and held.generation == runner.generation
        ]

    def runner_of(self, instance: Instance, now: float) -> RunnerReading | None:
        """Return the reading of an instance's lead, if it was heard in this generation."""
        return next(iter(self.serving({instance.instance: instance}, now)), None)

    def memory_of(self, instance: Instance, now: float) -> int:
        """Return the bytes of memory that an instance's ranks say they use, on all nodes."""
        return sum(rank.active_bytes for rank in self.ranks({instance.instance: instance}, now))

    def nodes(self, now: float) -> list[tuple[NodeReading, float]]:
        """Return each node's latest reading, however old, and its age in seconds."""
        return [(reading, now - at) for reading, at in self._readings[NodeReading].values()]

    def peers(self, now: float) -> list[PeersReading]:
        """Return the fresh readings of the peers that nodes know."""
        return self.fresh(PeersReading, now)

    def demands(self, now: float) -> list[DemandReading]:
        """Return the fresh readings of demand, from all gateway processes that are heard."""
        return self.fresh(DemandReading, now)

    def weights(self, now: float) -> list[WeightsReading]:
        """Return the fresh readings of what nodes fetch."""
        return self.fresh(WeightsReading, now)

    def links(self, now: float) -> list[LinkReading]:
        """Return what nodes measured towards each other in the last ten minutes."""
        return self.fresh(LinkReading, now, LINK_TTL_S)

    def undone(self, now: float) -> list[UndoneReading]:
        """Return what was undone at nodes, for a day after it was last told."""
        return self.fresh(UndoneReading, now, UNDONE_TTL_S)

    def key_uses(self, now: float) -> list[tuple[KeyUseReading, float]]:
        """Return what HTTP processes told of the use of API keys in the last week, each with its
        age in seconds."""
        self.fresh(KeyUseReading, now, KEYS_TTL_S)
        return [(reading, now - at) for reading, at in self._readings[KeyUseReading].values()]

    def test_of(self, instance: InstanceId, now: float) -> list[CollectiveReading]:
        """Return what the ranks of a collective test have said, for ten minutes after it."""
        fresh = self.fresh(CollectiveReading, now, TEST_TTL_S)
        return [reading for reading in fresh if reading.instance == instance]

    def fresh(self, kind: type[Reading], now: float, ttl_s: float = READING_TTL_S) -> list[Reading]:
        """Return the readings of one type that were renewed within their time; others are
        forgotten."""
        held = self._readings[kind]
        for key in [key for key, (_, at) in held.items() if now - at >= ttl_s]:
            del held[key]
        return [reading for reading, _ in held.values()]


def pool_of(readings: ClusterReadings, now: float) -> PoolReading | None:
    """Return how the pool stands, as the holder of the latest term says; None while nothing fresh
    was heard of it."""
    found = readings.fresh(PoolReading, now, POOL_TTL_S)
    return max(found, key=lambda one: one.term, default=None)


def hardware_of(readings: ClusterReadings, now: float) -> dict[NodeId, HardwareReading]:
    """Return what the sensors of nodes tell, of those that told it a moment ago."""
    return {reading.node: reading for reading in readings.fresh(HardwareReading, now)}


def storage_of(readings: ClusterReadings, now: float) -> list[StorageReading]:
    """Return what lies on nodes' disks, and what they would let go next."""
    return readings.fresh(StorageReading, now, STORAGE_TTL_S)


def wait_of(readings: ClusterReadings, model: ModelId, now: float) -> PoolWait | None:
    """Return what a model waits for, as the holder says; None where it does not wait."""
    told = pool_of(readings, now)
    return next((wait for wait in told.waits if wait.model == model), None) if told else None


def left_in(readings: Collection[PeersReading]) -> set[NodeId]:
    """Return the nodes that said goodbye: to one that tells of it, and none is linked with them."""
    told = [(peer.node, peer.status) for reading in readings for peer in reading.peers]
    alive = {reading.node for reading in readings} | {
        node for node, status in told if status == "linked"
    }
    return {node for node, status in told if status == "left"} - alive
