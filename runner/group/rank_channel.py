"""Talks to the other ranks of a group: what both ends of the lead's plan socket have in common.

Each end belongs to the main thread; `agree` and `tell` are the engine thread's and only hand over.
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
"""How often what a ring has carried is counted."""


class PlanListener(Protocol):
    """What a channel tells its rank, in the main thread."""

    def form(self) -> None:
        """Join the ring: all ranks are here. Told once; answered by `PlanChannel.formed`."""
        ...

    def plan(self, shared: SharedPlan) -> None:
        """Compute the lead's next plan; plans come in order, to followers alone."""
        ...

    def lost(self, what: str, is_final: bool) -> None:
        """Take the end of the group: `what` is the matter, and where `is_final` trying again will
        not help. Told once."""
        ...

    def ended(self, why: str) -> None:
        """Take the lead's leaving, in good order or not. Told once, to followers alone."""
        ...


def group_of(spec: RunnerSpec) -> GroupSpec:
    """Return the spec's group, checked against the rest of it. CannotForm."""
    group = spec.group
    if group is None:
        raise CannotForm(f"rank {spec.rank} of {spec.size} was given no group")
    if [seat.rank for seat in group.ranks] != list(range(spec.size)) or spec.rank >= spec.size:
        raise CannotForm(f"the group's ranks are not 0 to {spec.size - 1}")
    if not group.ranks[0].plans:
        raise CannotForm("rank 0 has no address for plans")
    return group


class PlanChannel:
    """One rank's end. Of `lost` and `ended` at most one is told, and none after `end`.

    It is the main thread's. `_told` guards what the engine's thread waits for; that thread sets
    `_met` alone, once.

    `group` is the spec's, `context` what the engine's thread is given. The rank keeps `step` (the
    last one computed, for beats) and `ready` (it has loaded: silence is borne less long). A lead
    hears by `on_memory` what another rank measured of its memory. A follower hears by `on_ask` of a
    traced request that has ended with a step: it answers by `tell_spans` once it has read that.
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
        self._told = threading.Condition()
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
        """Count silence from now: the ring is there, and the proof of who is in it is due. Count
        what crosses it as well, where no stage does."""
        self._formed = True
        self._formed_at = self._reactor.now()
        if self.group.backend == "ring" and self.group.sharding == "tensor":
            self._ring = RingTraffic(
                self.group, self.context.rank, lambda node: self._traffic.way(node, "exchange")
            )
            self._ring_looks = self._reactor.every(RING_LOOK_S, self._ring.look)

    def tell_memory(self, look: MemoryLook) -> None:
        """Tell the lead what this follower measured of its memory."""
        raise NotImplementedError

    def ask_spans(self, request_id: RequestId, step: int, tell: TellRank) -> None:
        """Have a lead's `tell` called, soon, with what each rank did for a request that ended with
        `step`, for each rank that answers."""
        raise NotImplementedError

    def tell_spans(self, request_id: RequestId) -> None:
        """Tell the lead what this follower did for a request."""
        raise NotImplementedError

    def end(self, why: str, *, is_final: bool = False) -> None:
        """Tell the others that this rank leaves, and from a follower whether it always would."""
        raise NotImplementedError

    def close(self) -> None:
        """Drop the link; nothing is told any more."""
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
        """Return what counts the plans and beats between this rank and those on other nodes."""
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
        """Give the group up where its first exchange does not end: who is in the ring and is none
        of its ranks need not say anything."""
        self._formed_at = min(now, self._formed_at + lost_s)
        limit_s = self.group.form_deadline_s
        if self._formed and not self._met and now - self._formed_at > limit_s:
            self._lose(f"the ranks did not prove in {limit_s:g} s that they alone are in the ring")

    def _lose(self, what: str, *, is_final: bool = False) -> None:
        if not self._over:
            self._over = True
            self._listener.lost(what, is_final)

    def _silence_limit_s(self) -> float:
        return RANK_LOST_S if self.ready else RANK_LOST_LOADING_S
