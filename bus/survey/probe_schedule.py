"""When a node measures which of its links, what it keeps of that, and for how long.

Pure: time and chance arrive as arguments. Every address of every linked peer has its turn, one at
a time and never while a runner decodes, a model is loaded or weights are fetched at either end;
who goes and comes back has no turn sooner for it. An address that does not answer has its figures
dropped and is tried after longer rests. This node itself is the *baseline*: what an echo costs
without any network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.process.endpoints import is_loopback
from bus.survey.link_probe import MOST_BYTES, ProbeResult
from bus.wire.ids import NodeId
from bus.wire.messages.readings import MeasuredLink, RunnerReading, WeightsReading
from bus.wire.messages.wire import Message
from bus.wire.topology import PRIORS, is_overlay

FIRST_S = 5.0
"""From the sight of an address to its first turn."""
EVERY_S = 300.0
EACH_S = 20.0
"""With many addresses the round is longer: so much for each."""
GAP_S = 2.0
"""Between two measurements of one node."""
RETRY_S, MAX_RETRY_S = 60.0, 1_800.0
KEEP_S = 3_600.0
KEPT = 3
"""Measurements of an address of which the best counts: noise only ever slows."""
MAX_ADDRESSES = 4
"""Of one peer."""
VPN_MOST_BYTES = 256 << 10
LOOPBACK_MOST_BYTES = 1 << 20
CEILING_BYTES_PER_S = 0.25e9
"""From here on it may be encryption that was measured: one core reached 0.46 GB/s of CURVE."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """An address (`host:port`) at which `peer` is to be measured."""

    peer: NodeId
    address: str

    @property
    def host(self) -> str:
        """Return the host of the address, without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def most_bytes(self) -> int:
        """Return what one measurement may send here."""
        if is_overlay(self.host):
            return VPN_MOST_BYTES
        return LOOPBACK_MOST_BYTES if is_loopback(self.host) else MOST_BYTES


@dataclass(slots=True)
class Turn:
    """An address's next turn and past results, latest last, each with its instant."""

    due_at: float
    failures: int = 0
    found: list[tuple[float, ProbeResult]] = field(default_factory=list[tuple[float, ProbeResult]])


class ProbeSchedule:
    """The turns of one node."""

    def __init__(self, me: NodeId) -> None:
        self.me = me
        self.turns: dict[ProbeTarget, Turn] = {}
        self._there: frozenset[ProbeTarget] = frozenset()
        self._rests_until = 0.0

    def choose(
        self,
        addresses: Mapping[NodeId, Sequence[str]],
        busy: Collection[NodeId],
        now: float,
        chance: float,
    ) -> ProbeTarget | None:
        """Choose the address to measure now, None for a rest. `addresses` are those of the linked
        peers and our own one, `chance` is in [0, 1)."""
        self._there = frozenset(
            ProbeTarget(node, address)
            for node, some in addresses.items()
            for address in tuple(dict.fromkeys(some))[:MAX_ADDRESSES]
        )
        for target in self._there - self.turns.keys():
            wait_s = 0.0 if target.peer == self.me else FIRST_S * (1 + chance) / 2
            self.turns[target] = Turn(now + wait_s)
        for target in self.turns.keys() - self._there:
            if now >= self.turns[target].due_at:
                del self.turns[target]
        if self.me in busy or now < self._rests_until:
            return None
        due = [
            (self.turns[target].due_at, target.peer, target.address, target)
            for target in self._there
            if self.turns[target].due_at <= now and target.peer not in busy
        ]
        if not due:
            return None
        chosen = min(due)[-1]
        self._rests_until = now + GAP_S
        every_s = max(EVERY_S, EACH_S * len(self._there))
        self.turns[chosen].due_at = now + every_s * (0.8 + 0.4 * chance)
        return chosen

    def measured(self, target: ProbeTarget, found: ProbeResult, now: float) -> None:
        """Keep the result of a measurement, the last `KEPT` of a target."""
        turn = self.turns.get(target)
        if turn is not None:
            turn.failures = 0
            turn.found = [*turn.found, (now, found)][-KEPT:]

    def failed(self, target: ProbeTarget, now: float) -> None:
        """Forget what was found of a target, and try it later: no node answered, or a wrong one."""
        turn = self.turns.get(target)
        if turn is not None:
            turn.found = []
            turn.due_at = now + min(MAX_RETRY_S, RETRY_S * 2 ** min(turn.failures, 8))
            turn.failures += 1

    def links(self, now: float) -> tuple[MeasuredLink, ...]:
        """Return what is known, by peer and address, without what is over `KEEP_S` old."""
        idle_s = min(
            (trip for target in self._there if target.peer == self.me
             for trip in self._trips(target, now)),
            default=None,
        )  # fmt: skip
        links = (
            self._link(target, idle_s, now) for target in self._there if target.peer != self.me
        )
        found = (one for one in links if one is not None)
        return tuple(sorted(found, key=lambda one: (one.peer, one.host)))

    def _trips(self, target: ProbeTarget, now: float) -> list[float]:
        found = self.turns[target].found
        return [one.round_trip_s for at, one in found if now - at <= KEEP_S]

    def _link(self, target: ProbeTarget, idle_s: float | None, now: float) -> MeasuredLink | None:
        found = [(at, one) for at, one in self.turns[target].found if now - at <= KEEP_S]
        rate = max((one.bytes_per_s or 0.0 for _, one in found), default=0.0)
        if not rate:
            return None
        trip, at_home = min(one.round_trip_s for _, one in found), is_loopback(target.host)
        return MeasuredLink(
            peer=target.peer,
            host=target.host,
            latency_s=PRIORS["loopback"].latency_s if at_home else one_way_s(trip, idle_s),
            bytes_per_s=rate,
            at_least=at_home or rate >= CEILING_BYTES_PER_S,
            round_trip_s=trip,
            age_s=round(now - max(at for at, _ in found), 1),
        )


def one_way_s(round_trip_s: float, idle_s: float | None) -> float:
    """Return what a small message of MLX's ring takes, from an echo over the bus: half of what the
    network adds to an echo within this machine, on top of what the ring takes there."""
    if idle_s is None:
        return round_trip_s / 2
    return PRIORS["loopback"].latency_s + max(0.0, round_trip_s - idle_s) / 2


def busy_nodes(readings: Iterable[Message]) -> set[NodeId]:
    """Return the nodes that compute, load or fetch now, or that others fetch from."""
    found: set[NodeId] = set()
    for one in readings:
        match one:
            case RunnerReading(node=node) if one.running or one.waiting or one.phase == "loading":
                found.add(node)
            case WeightsReading(node=node, fetches=fetches):
                for fetch in fetches:
                    if fetch.phase not in ("done", "failed"):
                        found |= {node, *fetch.sources}
            case _:
                pass
    return found
