"""Node cards and readings of the cluster, as one HTTP process last received them.

Pure: time arrives as `now`. A query drops readings that were not renewed in time. The files of
models stay on a disk while a node is silent, so a node card is kept for ten minutes or until the
node leaves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from bus.membership.card_book import REMEMBERED_S, CardBook
from bus.wire.accelerators import HardwareReading
from bus.wire.cards import ModelCard, NodeCard, PassedOver, models_of
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.gateways import KeyUseReading
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import (
    CardReading,
    DemandReading,
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
"""Prefixes of the topics on which node cards and readings arrive."""


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
"""The key of each type of reading; the latest reading of each key is kept."""


class ClusterReadings:
    """The latest node cards and readings, each with the time of its arrival. `forgotten` returns
    the nodes that were removed from the cluster; `own` is this node. `book` has the cards; `left`:
    the nodes that said goodbye."""

    def __init__(
        self,
        forgotten: Callable[[], Collection[NodeId]] = tuple,
        own: NodeId | None = None,
    ) -> None:
        self._forgotten = forgotten
        self._gone: Collection[NodeId] = ()
        self.book = CardBook(own)
        self.left: set[NodeId] = set()
        self._models: dict[ModelId, ModelCard] = {}
        self._models_until = -math.inf
        """The time until which `_models` equals what the node cards say. A new card sets it to the
        past."""
        self._readings: defaultdict[type[Message], dict[Any, tuple[Any, float]]] = defaultdict(dict)

    def heard(self, message: Message, now: float) -> None:
        """Store a node card or a reading; ignore any other message."""
        if isinstance(message, CardReading):
            if self.book.take(message.card, now):
                self._models_until = -math.inf
        elif key_of := _KEYS.get(type(message)):
            self._readings[type(message)][key_of(message)] = (message, now)
            if isinstance(message, PeersReading):
                self.left = left_in(self.peers(now))
                self._models_until = -math.inf

    def cards(self, now: float) -> list[NodeCard]:
        """Return the cards of nodes: this node's first, then by node id. A node that left the
        cluster, or was removed from it, has no card. A silent node keeps its card, because its
        models remain on its disk."""
        gone = self.left.union(self._forgotten())
        return [card for node, card in self.book.recent(now).items() if node not in gone]

    def models(self, now: float) -> dict[ModelId, ModelCard]:
        """Return the models on the disks of all nodes. For each model, return the model card of the
        first node that has it, with the request settings of the newest `card.toml` of all nodes."""
        gone = self._forgotten()
        if now >= self._models_until or gone != self._gone:
            self._gone = gone
            # by node id, so that all gateways show the same card of a model
            self._models = models_of(sorted(self.cards(now), key=lambda card: card.node))
            arrivals = (held.arrived_at for held in self.book.values() if held.is_recent(now))
            self._models_until = min(arrivals, default=now) + REMEMBERED_S
        return dict(self._models)

    def passed_over(self, now: float) -> list[tuple[str, PassedOver]]:
        """Return the entries on disks that are not models, each with the name of its node."""
        return [(card.name, entry) for card in self.cards(now) for entry in card.passed_over]

    def runners(self, now: float) -> list[RunnerReading]:
        """Return the fresh readings of the runners of all ranks."""
        return self.fresh(RunnerReading, now)

    def serving(self, instances: Mapping[str, Instance], now: float) -> list[RunnerReading]:
        """Return the readings of these instances' current lead runners."""
        return [rank for rank in self.ranks(instances, now) if rank.rank == 0]

    def ranks(self, instances: Mapping[str, Instance], now: float) -> list[RunnerReading]:
        """Return the readings of all ranks of these instances. Readings of an instance's earlier
        runners, which stay fresh for a while, are left out."""
        return [
            runner
            for runner in self.runners(now)
            if runner.instance is not None
            and (held := instances.get(runner.instance)) is not None
            and held.generation == runner.generation
        ]

    def runner_of(self, instance: Instance, now: float) -> RunnerReading | None:
        """Return the reading of an instance's lead runner; None if the current runner has sent
        none."""
        return next(iter(self.serving({instance.instance: instance}, now)), None)

    def memory_of(self, instance: Instance, now: float) -> int:
        """Return the bytes of memory that an instance's ranks use, on all nodes."""
        return sum(rank.active_bytes for rank in self.ranks({instance.instance: instance}, now))

    def nodes(self, now: float) -> list[tuple[NodeReading, float]]:
        """Return each node's latest reading, however old, and its age in seconds."""
        return [(reading, now - at) for reading, at in self._readings[NodeReading].values()]

    def peers(self, now: float) -> list[PeersReading]:
        """Return the fresh readings of nodes about their peers."""
        return self.fresh(PeersReading, now)

    def demands(self, now: float) -> list[DemandReading]:
        """Return the fresh readings of demand, from all gateway processes."""
        return self.fresh(DemandReading, now)

    def weights(self, now: float) -> list[WeightsReading]:
        """Return the fresh readings of the weights that nodes fetch."""
        return self.fresh(WeightsReading, now)

    def links(self, now: float) -> list[LinkReading]:
        """Return the measurements between nodes of the last ten minutes."""
        return self.fresh(LinkReading, now, LINK_TTL_S)

    def undone(self, now: float) -> list[UndoneReading]:
        """Return the changes of the cluster that nodes rolled back, because another log replaced
        theirs. Each report is valid for a day."""
        return self.fresh(UndoneReading, now, UNDONE_TTL_S)

    def key_uses(self, now: float) -> list[tuple[KeyUseReading, float]]:
        """Return the use of API keys that HTTP processes reported in the last week, each with its
        age in seconds."""
        self.fresh(KeyUseReading, now, KEYS_TTL_S)
        return [(reading, now - at) for reading, at in self._readings[KeyUseReading].values()]

    def test_of(self, instance: InstanceId, now: float) -> list[CollectiveReading]:
        """Return the results of a collective test (of the communication between ranks), by rank,
        for ten minutes after it."""
        fresh = self.fresh(CollectiveReading, now, TEST_TTL_S)
        return [reading for reading in fresh if reading.instance == instance]

    def fresh(self, kind: type[Reading], now: float, ttl_s: float = READING_TTL_S) -> list[Reading]:
        """Return the readings of one type that were renewed within `ttl_s`. Drop all other readings
        of that type."""
        held = self._readings[kind]
        for key in [key for key, (_, at) in held.items() if now - at >= ttl_s]:
            del held[key]
        return [reading for reading, _ in held.values()]


def pool_of(readings: ClusterReadings, now: float) -> PoolReading | None:
    """Return the state of the pool, as the leader of the latest term reports it; None if no fresh
    report has arrived."""
    reports = readings.fresh(PoolReading, now, POOL_TTL_S)
    return max(reports, key=lambda report: report.term, default=None)


def hardware_of(readings: ClusterReadings, now: float) -> dict[NodeId, HardwareReading]:
    """Return the fresh readings of the nodes' sensors."""
    return {reading.node: reading for reading in readings.fresh(HardwareReading, now)}


def storage_of(readings: ClusterReadings, now: float) -> list[StorageReading]:
    """Return the contents of the nodes' disks, and what each node would delete next."""
    return readings.fresh(StorageReading, now, STORAGE_TTL_S)


def wait_of(readings: ClusterReadings, model: ModelId, now: float) -> PoolWait | None:
    """Return why the loading of a model waits, as the leader reports; None if it does not wait."""
    pool = pool_of(readings, now)
    return next((wait for wait in pool.waits if wait.model == model), None) if pool else None


def left_in(readings: Collection[PeersReading]) -> set[NodeId]:
    """Return the nodes that left the cluster. A node counts as left if another node reports that it
    left, no node is linked with it, and it reports nothing itself."""
    statuses = [(peer.node, peer.status) for reading in readings for peer in reading.peers]
    alive = {reading.node for reading in readings} | {
        node for node, status in statuses if status == "linked"
    }
    return {node for node, status in statuses if status == "left"} - alive
