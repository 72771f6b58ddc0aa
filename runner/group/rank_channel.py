"""Talks to the other ranks of a group: what the lead's and the followers' ends of the plan socket
share.

Each end belongs to the main thread. `agree` and `tell` are called from the engine's thread and only
pass their message to the main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from bus.links.reactor import Timer
from bus.links.traffic import Senders, Tally, Traffic
from bus.links.transport import Link
from bus.patience import LostTime
from bus.process.clock import MachineWaits
from bus.process.clock import now as clock_now
from bus.service import Shell
from bus.wire.ids import RequestId
from bus.wire.messages.control import GroupSpec, RunnerSpec
from runner.engine import MemoryLook
from runner.group.group_config import CannotForm
from runner.group.group_traces import TellRank
from runner.group.lockstep import Agreement, RankContext, RankFacts, SharedPlan
from runner.group.rank_recorder import RankRecorder
from runner.group.ring_sockets import RingTraffic
from runner.lifecycle import RANK_BEAT_S, RANK_LOST_LOADING_S, RANK_LOST_S

RING_LOOK_S = 1.0
"""Interval at which the traffic of a ring is counted."""


class PlanListener(Protocol):
    """The callbacks by which a channel reports to its rank; called in the main thread."""

    def form(self) -> None:
        """Called once, when all ranks have said hello: join the ring, then report success with
        `PlanChannel.formed`."""
        ...

    def plan(self, shared: SharedPlan) -> None:
        """Called on followers with each plan of the lead, in order: compute the plan."""
        ...

    def lost(self, what: str, is_final: bool) -> None:
        """Called once when the group is lost, for the reason `what`. `is_final`: retrying cannot
        help."""
        ...

    def ended(self, why: str) -> None:
        """Called once, on followers only, when the lead has left, normally or not."""
        ...


def group_of(spec: RunnerSpec) -> GroupSpec:
    """Return the group in the spec, checked against the other fields of the spec. Raises
    CannotForm."""
    group = spec.group
    if group is None:
        raise CannotForm(f"rank {spec.rank} of {spec.size} has no group in its spec")
    if [seat.rank for seat in group.ranks] != list(range(spec.size)) or spec.rank >= spec.size:
        raise CannotForm(f"the ranks of the group are not 0 to {spec.size - 1}")
    if not group.ranks[0].plans:
        raise CannotForm("rank 0 has no address for plans")
    return group


class PlanChannel:
    """One rank's end of the plan socket. It calls at most one of the listener's `lost` and `ended`,
    and neither after `end`.

    It belongs to the main thread. `_news` guards the values for which the engine's thread waits;
    only that thread sets `_met`, once.

    `group` is the spec's; `context` is for the engine's thread. The rank sets `step` (the last step
    that it computed, for heartbeats) and `ready` (it has loaded, so the silence limit is shorter).
    A lead's `on_memory` gets the memory of other ranks. A follower's `on_ask` is called when a
    traced request has ended with a step; the follower calls `tell_spans` after it has read that
    step.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        shell: Shell,
        listener: PlanListener,
        *,
        agree: Callable[[RankFacts], Agreement],
        tell: Callable[[SharedPlan], None],
    ) -> None:
        self.group = group = group_of(spec)
        self.context = RankContext(
            rank=spec.rank,
            size=spec.size,
            generation=spec.generation,
            sharding=group.sharding,
            backend=group.backend,
            first_layer=spec.first_layer,
            last_layer=spec.last_layer,
            secret=group.secret,
            agree=agree,
            tell=tell,
            met=self._has_met,
            spans=RankRecorder(clock_now, threading.Lock()),
            ways={
                seat.rank: way
                for seat in group.ranks
                if group.sharding == "pipeline"
                and (way := shell.traffic.way(seat.node, "exchange")) is not None
            },
        )
        self.step = 0
        self.ready = False
        self.on_ask: Callable[[RequestId, int], None] = lambda _request_id, _step: None
        self.on_memory: Callable[[int, MemoryLook], None] = lambda _rank, _look: None
        self._reactor = shell.reactor
        self._log = shell.log
        self._listener = listener
        self._formed = False
        self._met = False
        self._over = False
        self._news = threading.Condition()
        self._lost = LostTime(MachineWaits())
        self._formed_at = 0.0
        self._link = Link(
            "dealer" if spec.rank else "router",
            identity=f"rank-{spec.rank}/{spec.generation}" if spec.rank else None,
            security=shell.security,
        )
        self._link.tally = self._tally(shell.traffic)
        self._traffic = shell.traffic
        self._ring: RingTraffic | None = None
        self._ring_looks: Timer | None = None

    def formed(self) -> None:
        """Start the silence timeouts and the deadline of the proof: the ring is formed. Also count
        the ring's traffic if no pipeline stage counts it."""
        self._formed = True
        self._formed_at = self._reactor.now()
        if self.group.backend == "ring" and self.group.sharding == "tensor":
            self._ring = RingTraffic(
                self.group, self.context.rank, lambda node: self._traffic.way(node, "exchange")
            )
            self._ring_looks = self._reactor.every(RING_LOOK_S, self._ring.look)

    def tell_memory(self, look: MemoryLook) -> None:
        """Send the lead this follower's memory measurement."""
        raise NotImplementedError

    def ask_spans(self, request_id: RequestId, step: int, tell: TellRank) -> None:
        """Ask each rank for its spans of a request whose last step is `step`; `tell` is called for
        each rank that answers."""
        raise NotImplementedError

    def tell_spans(self, request_id: RequestId) -> None:
        """Send the lead this follower's spans of a request."""
        raise NotImplementedError

    def end(self, why: str, *, is_final: bool = False) -> None:
        """Tell the other ranks that this rank is leaving. `is_final` (from a follower): retrying
        cannot help."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the link; no more calls follow."""
        self._beats.cancel()
        if self._ring is not None and self._ring_looks is not None:
            self._ring_looks.cancel()
            self._ring.close()
        self._reactor.unwatch(self._link)
        self._link.close()

    def _begin(self, received: Callable[[list[bytes]], None], beat: Callable[[], None]) -> None:
        self._reactor.watch(self._link, received)
        self._beats = self._reactor.every(RANK_BEAT_S, beat)

    def _tally(self, traffic: Traffic) -> Tally | None:
        """Return the counter of the bytes that plans and heartbeats take between this rank and
        other nodes."""
        ranks = self.group.ranks
        if self.context.rank:
            return traffic.way(ranks[0].node, "plans")
        nodes = {
            f"rank-{seat.rank}/{self.context.generation}".encode(): seat.node for seat in ranks
        }
        return Senders(lambda who: traffic.way(nodes[who], "plans") if who in nodes else None)

    def _has_met(self) -> None:
        self._met = True

    def _check_met(self, now: float, lost_s: float) -> None:
        """Give up the group if its first exchange does not end. A foreign process may have joined
        the ring, and such a process might never answer."""
        self._formed_at = min(now, self._formed_at + lost_s)
        limit_s = self.group.form_deadline_s
        if self._formed and not self._met and now - self._formed_at > limit_s:
            self._lose(
                f"the ranks did not prove within {limit_s:g} s that no other process is in the ring"
            )

    def _lose(self, what: str, *, is_final: bool = False) -> None:
        if not self._over:
            self._over = True
            self._listener.lost(what, is_final)

    def _silence_limit_s(self) -> float:
        return RANK_LOST_S if self.ready else RANK_LOST_LOADING_S
