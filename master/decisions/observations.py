"""The latest node cards and readings that the leader has received. They are not part of the
cluster's state.

Pure. These values are not in the log and are lost when the process ends; the nodes send them again
within seconds. Each kind of value expires after its own time.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.hardware.observed_links import measured_links
from bus.membership.card_book import CardBook
from bus.wire.cards import NodeCard
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import (
    CardReading,
    ClassDemand,
    DemandReading,
    LinkReading,
    ModelDemand,
    NodeReading,
    RunnerReading,
)
from bus.wire.messages.wire import Message
from bus.wire.topology import LinkCost
from master.pool import CopyUse

NODE_READING_S = 15.0
RUNNER_READING_S = 5.0
DEMAND_S = 5.0
"""Gateways publish demand every second. After this time the demand of a lost gateway expires."""
PEERS_READING_S = 3.0
LOST_S = 3.5
"""A node is lost if no message from it reached us or our switchboard for this many seconds."""
QUIET_S = 2.5
"""If a node has been silent for this many seconds, the leader no longer relies on its instances."""
APART = ("left", "refused")
"""Statuses of peers that our switchboard has no connection to, however recent their messages."""
LINK_READING_S = 600.0
TEST_S = 600.0
GATHER_S = 15.0
"""A new leader waits this long for the cards of joined nodes."""


class Observations:
    """The latest node cards and readings, each with the instant of its arrival.

    `tests`: ranks of collective tests, by instance and rank. `peers`: the list of the nodes that
    our own switchboard hears.
    """

    def __init__(self) -> None:
        self.cards = CardBook()
        self.nodes: dict[NodeId, tuple[NodeReading, float]] = {}
        self.runners: dict[tuple[NodeId, str], tuple[RunnerReading, float]] = {}
        self.demands: dict[tuple[NodeId, str], tuple[DemandReading, float]] = {}
        self.links: dict[NodeId, tuple[LinkReading, float]] = {}
        self.tests: dict[tuple[InstanceId, int], tuple[CollectiveReading, float]] = {}
        self.peers: tuple[PeersReading, float] | None = None
        self.first_heard_at: float | None = None

    def hear(self, message: Message, now: float) -> bool:
        """Store a reading. Return whether a decision may be due at once because of it."""
        if self.first_heard_at is None:
            self.first_heard_at = now
        match message:
            case CardReading(card=card):
                previous, _ = self.cards.get(card.node, (None, now))
                if not self.cards.take(card, now):
                    return False
                if previous is None or previous.models != card.models:
                    return True
                return _layers_of(previous) != _layers_of(card)
            case NodeReading():
                first = message.node not in self.nodes
                self.nodes[message.node] = (message, now)
                return first
            case RunnerReading():
                before = self.runners.get((message.node, message.process))
                self.runners[message.node, message.process] = (message, now)
                return before is not None and _is_busy(before[0]) != _is_busy(message)
            case DemandReading():
                key = (message.node, message.process)
                known_models = self.demands[key][0].models if key in self.demands else ()
                self.demands[key] = (message, now)
                return _classes(message.models) != _classes(known_models)
            case LinkReading():
                self.links[message.node] = (message, now)
                return False
            case PeersReading():
                self.peers = (message, now)
                return False
            case CollectiveReading():
                self.tests = {k: v for k, v in self.tests.items() if now - v[1] <= TEST_S}
                self.tests[message.instance, message.rank] = (message, now)
                return message.phase == "done"
            case _:
                return False

    def living_cards(self, now: float) -> dict[NodeId, NodeCard]:
        """Return the cards that have not expired. Nodes that said goodbye are left out."""
        left = self.left_nodes(now)
        return {n: card for n, card in self.cards.living(now).items() if n not in left}

    def unheard_cards(self, now: float) -> list[NodeCard]:
        """Return the last cards of lost nodes. These nodes may come back, and their weights are
        still on their disks."""
        left, lost = self.left_nodes(now), self.lost_nodes(now)
        living = self.cards.living(now)
        return [
            card
            for node, card in self.cards.recent(now).items()
            if node not in left and (node in lost or node not in living)
        ]

    def left_nodes(self, now: float) -> frozenset[NodeId]:
        """Return the nodes that said goodbye, as reported by our switchboard."""
        if self.peers is None or now - self.peers[1] > PEERS_READING_S:
            return frozenset()
        return frozenset(peer.node for peer in self.peers[0].peers if peer.status == "left")

    def living_nodes(self, now: float) -> dict[NodeId, NodeReading]:
        """Return the readings that nodes sent in the last 15 s, by node."""
        return {n: r for n, (r, at) in self.nodes.items() if now - at <= NODE_READING_S}

    def last_heard_at(self, node: NodeId) -> float | None:
        """Return when a card or reading of the node last arrived, or None."""
        values = [self.cards.get(node), self.nodes.get(node)]
        ours = (value for (of, _), value in self.runners.items() if of == node)
        instants = [value[1] for value in (*values, *ours) if value is not None]
        return max(instants, default=None)

    def lost_nodes(self, now: float, silent_s: float = LOST_S) -> frozenset[NodeId]:
        """Return the nodes from which no message reached us or our switchboard for `silent_s`.
        Nodes that never sent anything, left or are refused do not count. Empty while our own
        switchboard is silent, because then the fault is ours."""
        return frozenset(self.lost_since(now, silent_s))

    def lost_since(self, now: float, silent_s: float = LOST_S) -> dict[NodeId, float]:
        """Return each of the `lost_nodes` with the instant of the last message from it."""
        if self.peers is None or now - self.peers[1] > PEERS_READING_S:
            return {}
        reading, said_at = self.peers
        silent = [
            peer.node
            for peer in reading.peers
            if peer.status in APART or peer.silent_s + now - said_at >= silent_s
        ]
        heard = {node: self.last_heard_at(node) for node in silent}
        return {n: at for n, at in heard.items() if at is not None and now - at >= silent_s}

    def quiet_nodes(self, among: Iterable[str], now: float) -> frozenset[NodeId]:
        """Return the nodes among these whose instances may not answer: no message from them arrived
        for `QUIET_S` (long before they count as lost), or ever."""
        heard = {*self.cards, *self.nodes, *(node for node, _ in self.runners)}
        return self.lost_nodes(now, QUIET_S).union({NodeId(node) for node in among} - heard)

    def gathering(self, now: float) -> bool:
        """Return whether a new leader should still wait, because some living nodes may not have
        sent their node cards yet."""
        return self.first_heard_at is None or now - self.first_heard_at < GATHER_S

    def living_links(self, now: float) -> dict[NodeId, dict[NodeId, LinkCost]]:
        """Return the links measured in the last ten minutes, by node and peer, each over the
        addresses that a ring would use."""
        ips = {node: card.ips for node, (card, _) in self.cards.items()}
        return {
            node: measured_links(reading, ips)
            for node, (reading, at) in self.links.items()
            if now - at <= LINK_READING_S
        }

    def demand(self, now: float) -> dict[ModelId, ModelDemand]:
        """Return unmet demand by model, summed over gateway processes."""
        demands: dict[ModelId, ModelDemand] = {}
        for reading, at in self.demands.values():
            if now - at > DEMAND_S:
                continue
            for model in reading.models:
                demands[model.model] = _joined(demands.get(model.model), model)
        return demands

    def use_of(self, instance: Instance, now: float) -> CopyUse | None:
        """Return the use of a ready instance, as its runner last reported it; None if no report
        arrived in the last 5 s."""
        lead = instance.lead
        if lead is None:
            return None
        load = self.runners.get((lead.node, lead.process))
        if load is None or now - load[1] > RUNNER_READING_S:
            return None
        reading, last_heard_at = load
        if (reading.instance, reading.generation) != (instance.instance, instance.generation):
            return None
        busy = reading.running + reading.waiting
        then_s = 0.0 if busy else reading.last_used_ago_s
        idle_s = 0.0 if busy else then_s + (now - last_heard_at)
        classes = (reading.best_running_priority, reading.best_waiting_priority)
        best = min(
            (demand_class for demand_class in classes if demand_class is not None), default=None
        )
        return CopyUse(busy, idle_s, best, last_heard_at, then_s)

    def measured_at(self, node: NodeId) -> float:
        """Return when a node's memory was last reported; minus infinity if never. For a node with
        GPUs, both its reading and its card, which has their free memory, must have arrived."""
        at = self.nodes[node][1] if node in self.nodes else float("-inf")
        card, heard_at = self.cards.get(node, (None, at))
        return at if card is None or not card.devices else min(at, heard_at)

    def has_done(self, instance: InstanceId, ranks: int) -> bool:
        """Return whether every rank of a collective test has reported that it is done."""
        readings = [self.tests.get((instance, rank)) for rank in range(ranks)]
        return all(reading is not None and reading[0].phase == "done" for reading in readings)


def _layers_of(card: NodeCard) -> list[tuple[ModelId, tuple[tuple[int, int], ...]]]:
    return [(part.model, part.layers) for part in card.parts]


def _is_busy(reading: RunnerReading) -> bool:
    return bool(reading.running or reading.waiting)


def _classes(models: tuple[ModelDemand, ...]) -> set[tuple[ModelId, int]]:
    return {(model.model, model.best_priority) for model in models}


def _joined(demand: ModelDemand | None, more: ModelDemand) -> ModelDemand:
    if demand is None:
        return more
    oldest: dict[int, ClassDemand] = {}
    for waiting_class in (*demand.classes, *more.classes):
        other = oldest.get(waiting_class.priority)
        if other is None:
            oldest[waiting_class.priority] = waiting_class
            continue
        waiting, oldest_s = (
            waiting_class.waiting + other.waiting,
            max(waiting_class.oldest_s, other.oldest_s),
        )
        oldest[waiting_class.priority] = waiting_class.model_copy(
            update={"waiting": waiting, "oldest_s": oldest_s}
        )
    return ModelDemand(
        model=more.model,
        waiting=demand.waiting + more.waiting,
        best_priority=min(demand.best_priority, more.best_priority),
        oldest_s=max(demand.oldest_s, more.oldest_s),
        classes=tuple(oldest[priority] for priority in sorted(oldest)),
    )
