"""Decides when a node measures which of its links, and how long the results are valid.

Pure: time and randomness arrive as arguments. A node measures the addresses of its linked peers one
at a time. It measures nothing while one of the two nodes decodes, loads a model or fetches weights.
A peer is not measured earlier because it left and returned. Latency takes a few echoes and is
measured often. Bandwidth takes bursts. Nodes send bursts one after the other: by the time of day,
each node has its own part of a round. Only an address without a measured bandwidth need not wait
for that part. The results of an address that does not answer are deleted, and it is tried again
after longer pauses. A node also measures itself, as the *baseline*: the time of an echo without any
network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.process.endpoints import is_loopback
from bus.survey.link_probe import MOST_BYTES, ProbeResult
from bus.wire.ids import NodeId
from bus.wire.messages.readings import MeasuredLink, RestingLink, RunnerReading, WeightsReading
from bus.wire.messages.wire import Message
from bus.wire.topology import PRIORS, is_overlay

FIRST_S = 5.0
"""Longest time from an address's first appearance to its first measurement."""
LATENCY_EVERY_S = 10.0
LATENCY_EACH_S = 2.0
"""With many addresses latency is measured less often: a round over all of them takes this time per
address."""
BANDWIDTH_EVERY_S = 60.0
"""Length of a round, in which every node measures bandwidth in its own part. With many nodes a
round is longer, so that each node can measure every other node."""
GAP_S = 2.0
"""Minimum interval between two measurements of bandwidth by one node."""
RETRY_S, MAX_RETRY_S = 60.0, 1_800.0
KEEP_S = 3_600.0
KEPT, KEPT_TRIPS = 5, 12
"""Number of bandwidths, and of latencies, that are stored per address. The best of them counts,
because load and noise only make a measurement worse."""
OVERDUE = 2.5
"""A peer is reported as `resting` (not measured at present) if its last latency is older than this
many intervals."""
MAX_ADDRESSES = 4
"""Maximum number of addresses of one peer that are measured."""
VPN_MOST_BYTES = 256 << 10
LOOPBACK_MOST_BYTES = 1 << 20
CEILING_BYTES_PER_S = 0.25e9
"""From this rate on, the measured bandwidth is only a lower bound, because encryption may be the
limit: one core reached 0.46 GB/s of CURVE."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """An address (`host:port`) at which `peer` is measured."""

    peer: NodeId
    address: str

    @property
    def host(self) -> str:
        """Return the host of the address, without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def most_bytes(self) -> int:
        """Return how many bytes one measurement on this node may send."""
        if is_overlay(self.host):
            return VPN_MOST_BYTES
        return LOOPBACK_MOST_BYTES if is_loopback(self.host) else MOST_BYTES


@dataclass(frozen=True, slots=True)
class Measurement:
    """The next measurement: its target, and the total bytes of its bursts (0: only latency is
    measured)."""

    target: ProbeTarget
    most_bytes: int


@dataclass(slots=True)
class Turn:
    """The schedule and results of one address. `due_at`: when its bandwidth is measured next,
    `latency_due_at`: its latency. Past results with their times, latest last: `rates` in bytes/s,
    `trips` in seconds."""

    due_at: float
    latency_due_at: float
    failures: int = 0
    rates: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    trips: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])


class ProbeSchedule:
    """The schedule by which one node measures its links."""

    def __init__(self, me: NodeId) -> None:
        self.me = me
        self.turns: dict[ProbeTarget, Turn] = {}
        self._there: frozenset[ProbeTarget] = frozenset()
        self._rests_until = 0.0

    @property
    def latency_every_s(self) -> float:
        """Return the interval, in seconds, at which the latency of an idle address is measured."""
        return max(LATENCY_EVERY_S, LATENCY_EACH_S * len(self._there))

    @property
    def bandwidth_every_s(self) -> float:
        """Return the interval, in seconds, at which the bandwidth of an idle node's links is
        measured. It is one round, which is long enough for every node to measure every other
        node."""
        nodes = len(self._nodes())
        return max(BANDWIDTH_EVERY_S, GAP_S * nodes * (nodes - 1))

    def choose(
        self,
        addresses: Mapping[NodeId, Sequence[str]],
        busy: Collection[NodeId],
        now: float,
        chance: float,
        wall_s: float,
    ) -> Measurement | None:
        """Choose the next measurement; None if none is due. `addresses`: those of the linked peers
        and of this node. `busy`: nodes that must not be disturbed. `chance` is a random number in
        [0, 1). `wall_s` is the time of day, which all nodes share."""
        self._look(addresses, now, chance)
        if self.me in busy:
            return None
        may_burst = now >= self._rests_until
        has_turn = self._has_turn(wall_s)
        due: list[tuple[float, NodeId, str, ProbeTarget, bool]] = []
        for target in self._there:
            turn = self.turns[target]
            if target.peer in busy:
                continue
            wants_rate = target.peer != self.me and (has_turn or not turn.rates)
            if wants_rate and may_burst and turn.due_at <= now:
                due.append((turn.due_at, target.peer, target.address, target, True))
            elif turn.latency_due_at <= now:
                due.append((turn.latency_due_at, target.peer, target.address, target, False))
        if not due:
            return None
        *_, target, bursts = min(due)
        turn = self.turns[target]
        turn.latency_due_at = now + self.latency_every_s * (0.8 + 0.4 * chance)
        if bursts:
            self._rests_until = now + GAP_S
            turn.due_at = now + self.bandwidth_every_s / 2  # due again in the next round
        return Measurement(target, target.most_bytes if bursts else 0)

    def measured(self, target: ProbeTarget, result: ProbeResult, now: float) -> None:
        """Store the result of a measurement among the last ones of its target."""
        turn = self.turns.get(target)
        if turn is None:
            return
        turn.failures = 0
        turn.trips = [*turn.trips, (now, result.round_trip_s)][-KEPT_TRIPS:]
        if result.bytes_per_s:
            turn.rates = [*turn.rates, (now, result.bytes_per_s)][-KEPT:]

    def interrupted(self, target: ProbeTarget, now: float) -> None:
        """Make the bandwidth of a target due again, because a node became busy during the
        measurement."""
        turn = self.turns.get(target)
        if turn is not None:
            turn.due_at = now

    def failed(self, target: ProbeTarget, now: float) -> None:
        """Delete a target's results and schedule it later, because no node answered or the wrong
        node did."""
        turn = self.turns.get(target)
        if turn is not None:
            turn.rates, turn.trips = [], []
            turn.due_at = now + min(MAX_RETRY_S, RETRY_S * 2 ** min(turn.failures, 8))
            turn.latency_due_at = turn.due_at
            turn.failures += 1

    def links(self, now: float) -> tuple[MeasuredLink, ...]:
        """Return the results, by peer and address; results older than `KEEP_S` are left out."""
        idle_s = min(
            (trip for target in self._there if target.peer == self.me
             for _, trip in _fresh(self.turns[target].trips, now)),
            default=None,
        )  # fmt: skip
        links = (
            self._link(target, idle_s, now) for target in self._there if target.peer != self.me
        )
        measured = (link for link in links if link is not None)
        return tuple(sorted(measured, key=lambda link: (link.peer, link.host)))

    def resting(self, busy: Collection[NodeId], now: float) -> tuple[RestingLink, ...]:
        """Return the linked peers whose last measurement is overdue, by id."""
        oldest_at = now - OVERDUE * self.latency_every_s
        rests: list[RestingLink] = []
        for peer in sorted(self._nodes() - {self.me}):
            turns = [self.turns[target] for target in self._there if target.peer == peer]
            if any(turn.rates and turn.trips[-1][0] >= oldest_at for turn in turns):
                continue
            if self.me in busy:
                rests.append(RestingLink(peer=peer, why="busy_here"))
            elif peer in busy:
                rests.append(RestingLink(peer=peer, why="busy_there"))
            else:
                is_silent = all(turn.failures for turn in turns)
                rests.append(RestingLink(peer=peer, why="unanswered" if is_silent else "new"))
        return tuple(rests)

    def _look(self, addresses: Mapping[NodeId, Sequence[str]], now: float, chance: float) -> None:
        """Add new addresses to the schedule, and delete absent ones once they are due."""
        self._there = frozenset(
            ProbeTarget(node, address)
            for node, some in addresses.items()
            for address in tuple(dict.fromkeys(some))[:MAX_ADDRESSES]
        )
        for target in self._there - self.turns.keys():
            first_at = now if target.peer == self.me else now + FIRST_S * (1 + chance) / 2
            self.turns[target] = Turn(first_at, first_at)
        for target in self.turns.keys() - self._there:
            if now >= self.turns[target].due_at:
                del self.turns[target]

    def _nodes(self) -> set[NodeId]:
        return {self.me, *(target.peer for target in self._there)}

    def _has_turn(self, wall_s: float) -> bool:
        """Return whether the current part of the round is this node's, in which only this node
        sends bursts."""
        nodes, round_s = sorted(self._nodes()), self.bandwidth_every_s
        part = int(wall_s % round_s / round_s * len(nodes))
        return nodes[min(part, len(nodes) - 1)] == self.me

    def _link(self, target: ProbeTarget, idle_s: float | None, now: float) -> MeasuredLink | None:
        turn = self.turns[target]
        rates, trips = _fresh(turn.rates, now), _fresh(turn.trips, now)
        if not rates or not trips:
            return None
        rate, trip = max(rate for _, rate in rates), min(rate for _, rate in trips)
        at_home = is_loopback(target.host)
        return MeasuredLink(
            peer=target.peer,
            host=target.host,
            latency_s=PRIORS["loopback"].latency_s if at_home else one_way_s(trip, idle_s),
            bytes_per_s=rate,
            at_least=at_home or rate >= CEILING_BYTES_PER_S,
            round_trip_s=trip,
            age_s=round(now - rates[-1][0], 1),
            latency_age_s=round(now - trips[-1][0], 1),
        )


def _fresh(samples: Sequence[tuple[float, float]], now: float) -> list[tuple[float, float]]:
    return [(at, value) for at, value in samples if now - at <= KEEP_S]


def one_way_s(round_trip_s: float, idle_s: float | None) -> float:
    """Return the latency, in seconds, of a small message of MLX's ring, estimated from an echo over
    the bus. It is half of what the network adds to a local echo (`idle_s`), plus the ring's local
    latency."""
    if idle_s is None:
        return round_trip_s / 2
    return PRIORS["loopback"].latency_s + max(0.0, round_trip_s - idle_s) / 2


def busy_nodes(readings: Iterable[Message]) -> set[NodeId]:
    """Return the nodes that now compute, load or fetch, or from which other nodes fetch."""
    nodes: set[NodeId] = set()
    for reading in readings:
        match reading:
            case RunnerReading(node=node) if (
                reading.running or reading.waiting or reading.phase == "loading"
            ):
                nodes.add(node)
            case WeightsReading(node=node, fetches=fetches):
                for fetch in fetches:
                    if fetch.phase not in ("done", "failed"):
                        nodes |= {node, *fetch.sources}
            case _:
                pass
    return nodes
