"""Cards and readings as the holder has heard them: the latest of each, beside the state.

Pure. Nothing here is in the log or survives the process: it is heard again within seconds.
Each value is believed for its time and not longer.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.hardware.observed_links import measured_links
from bus.wire.cards import NodeCard, supersedes
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
"""Gateways publish demand every second; that of a gateway which is gone counts no longer."""
PEERS_READING_S = 3.0
LOST_S = 3.5
"""A node of which neither our switchboard nor we have heard anything for so long is lost."""
QUIET_S = 2.5
"""On the copies of a node that has been silent for so long nothing is built any more."""
APART = ("left", "refused")
"""What our switchboard says of peers with which it has nothing to do, however lately they spoke."""
LINK_READING_S = 600.0
REMEMBERED_S = 600.0
"""What lies on the disk of a node that fell silent is known so long, here as at gateways."""
TEST_S = 600.0
GATHER_S = 15.0
"""A young holder waits this long for the cards of nodes that have joined."""


class Observations:
    """The latest values, each with the instant at which it was heard.

    `tests` are ranks of collective tests, by instance and rank; `peers` is our own switchboard's
    word on which nodes it hears.
    """

    def __init__(self) -> None:
        self.cards: dict[NodeId, tuple[NodeCard, float]] = {}
        self.nodes: dict[NodeId, tuple[NodeReading, float]] = {}
        self.runners: dict[tuple[NodeId, str], tuple[RunnerReading, float]] = {}
        self.demands: dict[tuple[NodeId, str], tuple[DemandReading, float]] = {}
        self.links: dict[NodeId, tuple[LinkReading, float]] = {}
        self.tests: dict[tuple[InstanceId, int], tuple[CollectiveReading, float]] = {}
        self.peers: tuple[PeersReading, float] | None = None
        self.first_heard_at: float | None = None

    def hear(self, message: Message, now: float) -> bool:
        """Take a reading in; return whether it may call for a decision at once."""
        if self.first_heard_at is None:
            self.first_heard_at = now
        match message:
            case CardReading(card=card):
                known, _ = self.cards.get(card.node, (None, now))
                if supersedes(card, known):
                    self.cards[card.node] = (card, now)
                return known is None or known.models != card.models
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
        """Return the cards that have not expired, of nodes that have not said goodbye."""
        left = self.left_nodes(now)
        return {
            node: card
            for node, (card, at) in self.cards.items()
            if now - at <= card.ttl_s and node not in left
        }

    def unheard_cards(self, now: float) -> list[NodeCard]:
        """Return the cards of nodes that are lost and may come back, for weights do not move."""
        left = self.left_nodes(now)
        lost = self.lost_nodes(now)
        return [
            card
            for node, (card, at) in sorted(self.cards.items())
            if node not in left and (node in lost or now - at > card.ttl_s)
            if now - at <= REMEMBERED_S
        ]

    def left_nodes(self, now: float) -> frozenset[NodeId]:
        """Return the nodes that said goodbye, as our switchboard has it."""
        if self.peers is None or now - self.peers[1] > PEERS_READING_S:
            return frozenset()
        return frozenset(peer.node for peer in self.peers[0].peers if peer.status == "left")

    def living_nodes(self, now: float) -> dict[NodeId, NodeReading]:
        """Return the node readings of the last 15 s."""
        return {n: r for n, (r, at) in self.nodes.items() if now - at <= NODE_READING_S}

    def heard_at(self, node: NodeId) -> float | None:
        """Return the instant at which a card or reading of the node last came, or None."""
        values = [self.cards.get(node), self.nodes.get(node)]
        ours = (value for (of, _), value in self.runners.items() if of == node)
        found = [value[1] for value in (*values, *ours) if value is not None]
        return max(found, default=None)

    def lost_nodes(self, now: float, silent_s: float = LOST_S) -> frozenset[NodeId]:
        """Return the nodes that were heard once and have been silent for `silent_s`, to us and to
        our switchboard, which hears nothing more of one that left or is refused. None while our
        own switchboard says nothing: then it is we who do not hear."""
        return frozenset(self.lost_since(now, silent_s))

    def lost_since(self, now: float, silent_s: float = LOST_S) -> dict[NodeId, float]:
        """Return when each of the `lost_nodes` was last heard."""
        if self.peers is None or now - self.peers[1] > PEERS_READING_S:
            return {}
        reading, said_at = self.peers
        silent = [
            peer.node
            for peer in reading.peers
            if peer.status in APART or peer.silent_s + now - said_at >= silent_s
        ]
        heard = {node: self.heard_at(node) for node in silent}
        return {n: at for n, at in heard.items() if at is not None and now - at >= silent_s}

    def quiet_nodes(self, among: Iterable[str], now: float) -> frozenset[NodeId]:
        """Return those nodes whose copies may not answer: silent for `QUIET_S`, long before they
        are lost, or never heard by us."""
        heard = {*self.cards, *self.nodes, *(node for node, _ in self.runners)}
        return self.lost_nodes(now, QUIET_S).union({NodeId(node) for node in among} - heard)

    def gathering(self, now: float) -> bool:
        """Return whether cards of living nodes may still be on their way to a young holder."""
        return self.first_heard_at is None or now - self.first_heard_at < GATHER_S

    def living_links(self, now: float) -> dict[NodeId, dict[NodeId, LinkCost]]:
        """Return the links that nodes measured in the last ten minutes, by node and peer, each
        over the addresses that a ring would take."""
        ips = {node: card.ips for node, (card, _) in self.cards.items()}
        return {
            node: measured_links(reading, ips)
            for node, (reading, at) in self.links.items()
            if now - at <= LINK_READING_S
        }

    def demand(self, now: float) -> dict[ModelId, ModelDemand]:
        """Return unmet demand by model, summed over gateway processes."""
        found: dict[ModelId, ModelDemand] = {}
        for reading, at in self.demands.values():
            if now - at > DEMAND_S:
                continue
            for one in reading.models:
                found[one.model] = _joined(found.get(one.model), one)
        return found

    def use_of(self, instance: Instance, now: float) -> CopyUse | None:
        """Return the use of a ready instance, or None when it was not heard in the last 5 s."""
        lead = instance.lead
        if lead is None:
            return None
        known = self.runners.get((lead.node, lead.process))
        if known is None or now - known[1] > RUNNER_READING_S:
            return None
        reading, heard_at = known
        if (reading.instance, reading.generation) != (instance.instance, instance.generation):
            return None
        busy = reading.running + reading.waiting
        then_s = 0.0 if busy else reading.last_used_ago_s
        idle_s = 0.0 if busy else then_s + (now - heard_at)
        classes = (reading.best_running_priority, reading.best_waiting_priority)
        best = min((one for one in classes if one is not None), default=None)
        return CopyUse(busy, idle_s, best, heard_at, then_s)

    def measured_at(self, node: NodeId) -> float:
        """Return when a node's memory was last heard of; infinitely long ago for never."""
        return self.nodes[node][1] if node in self.nodes else float("-inf")

    def has_done(self, instance: InstanceId, ranks: int) -> bool:
        """Return whether every rank of a collective test has said that it is done."""
        known = [self.tests.get((instance, rank)) for rank in range(ranks)]
        return all(one is not None and one[0].phase == "done" for one in known)


def _is_busy(reading: RunnerReading) -> bool:
    return bool(reading.running or reading.waiting)


def _classes(models: tuple[ModelDemand, ...]) -> set[tuple[ModelId, int]]:
    return {(one.model, one.best_priority) for one in models}


def _joined(known: ModelDemand | None, more: ModelDemand) -> ModelDemand:
    if known is None:
        return more
    oldest: dict[int, ClassDemand] = {}
    for one in (*known.classes, *more.classes):
        other = oldest.get(one.priority)
        if other is None:
            oldest[one.priority] = one
            continue
        waiting, oldest_s = one.waiting + other.waiting, max(one.oldest_s, other.oldest_s)
        oldest[one.priority] = one.model_copy(update={"waiting": waiting, "oldest_s": oldest_s})
    return ModelDemand(
        model=more.model,
        waiting=known.waiting + more.waiting,
        best_priority=min(known.best_priority, more.best_priority),
        oldest_s=max(known.oldest_s, more.oldest_s),
        classes=tuple(oldest[priority] for priority in sorted(oldest)),
    )
