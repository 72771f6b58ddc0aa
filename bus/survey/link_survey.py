"""Talks to other switchboards: measures the links to them while they are idle.

Each measurement has its own connection, with the keys that all members share, so that no hello
waits behind it. `bus.survey.link_probe` decides what to send, `bus.survey.probe_schedule` when.
While either node is busy, no burst is sent. The results are published as `LinkReading`s: after each
measurement, when the list of unmeasured peers changes, and every minute.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence

from bus.links.reactor import Reactor, Timer
from bus.links.security import Security
from bus.links.traffic import Traffic
from bus.links.transport import Link
from bus.process.clock import wall
from bus.survey.link_probe import FRAME_BYTES, Burst, LinkProbe, ProbeResult
from bus.survey.probe_schedule import Measurement, ProbeSchedule, ProbeTarget
from bus.wire.codec import Envelope, Speaker, decode, encode
from bus.wire.errors import BadMessage, Exposed
from bus.wire.ids import NodeId
from bus.wire.messages.peers import LinkEcho, LinkEchoed
from bus.wire.messages.readings import LinkReading, RestingLink

TICK_S = 1.0
PUBLISH_S = 60.0
RESTING_S = 5.0
"""A report that is due only because the list of unmeasured peers changed comes at least this long
after the last report."""
DEADLINE_S = 3.0


def tell_unmeasured(node: NodeId, reactor: Reactor, publish: Callable[[LinkReading], None]) -> None:
    """Publish regularly that this node does not measure links."""

    def tell() -> None:
        publish(LinkReading(node=node, links=(), measured_at_s=wall()))

    tell()
    reactor.every(PUBLISH_S, tell)


class LinkSurvey:
    """Measures one link at a time. `addresses()` returns the addresses of the linked peers and of
    this node; `busy()` returns the nodes that must not be disturbed."""

    def __init__(
        self,
        speaker: Speaker,
        reactor: Reactor,
        addresses: Callable[[], Mapping[NodeId, Sequence[str]]],
        busy: Callable[[], Collection[NodeId]],
        publish: Callable[[LinkReading], None],
        security: Security | None,
        traffic: Traffic,
    ) -> None:
        self._traffic = traffic
        self._measurements = 0
        self.rounds = ProbeSchedule(speaker.node)
        self._speaker = speaker
        self._reactor = reactor
        self._addresses = addresses
        self._busy = busy
        self._publish = publish
        self._security = security
        self._filling = os.urandom(FRAME_BYTES)
        self._link: Link | None = None
        self._gauge = LinkProbe(0)
        self._target = ProbeTarget(speaker.node, "")
        self._deadline: Timer | None = None
        self._published_at = reactor.now()
        self._published_resting: tuple[RestingLink, ...] = ()
        self._timer = reactor.every(TICK_S, self._tick)

    def close(self) -> None:
        """Stop measuring."""
        self._timer.cancel()
        self._hang_up()

    def _tick(self) -> None:
        now, busy = self._reactor.now(), self._busy()
        if self._link is None:
            chosen = self.rounds.choose(self._addresses(), busy, now, random.random(), wall())
            if chosen is not None:
                self._measure(chosen, now)
        waited_s = now - self._published_at
        rests = waited_s >= RESTING_S and self.rounds.resting(busy, now) != self._published_resting
        if rests or waited_s >= PUBLISH_S:
            self._tell(now)

    def _measure(self, chosen: Measurement, now: float) -> None:
        target = chosen.target
        self._measurements += 1
        by = self._speaker
        identity = f"{by.node}/{by.boot}/{self._measurements}"
        link = Link("dealer", identity=identity, security=self._security)
        link.tally = self._traffic.way(target.peer, "peers")
        try:
            link.connect(f"tcp://{target.address}")
        except Exposed:
            link.close()
            self.rounds.failed(target, now)
            return
        self._link, self._target = link, target
        self._gauge = LinkProbe(chosen.most_bytes)
        self._reactor.watch(link, self._answered)
        self._deadline = self._reactor.later(DEADLINE_S, self._fail)
        self._send(self._gauge.start(now))

    def _send(self, burst: Burst) -> None:
        assert self._link is not None, "no measurement is running"
        last = len(burst.frames) - 1
        for place, size in enumerate(burst.frames):
            echo = LinkEcho(
                node=self._speaker.node,
                serial=burst.serial,
                answer=place == last,
                filling=self._filling[:size],
            )
            by = self._speaker
            self._link.send(encode(Envelope(by.node, by.process, by.boot, 0, echo)))

    def _answered(self, frames: list[bytes]) -> None:
        now = self._reactor.now()
        try:
            answer = decode(frames[-1]).message
        except BadMessage:
            self._fail()
            return
        if not isinstance(answer, LinkEchoed) or answer.node != self._target.peer:
            self._fail()
            return
        match self._gauge.answered(answer.serial, now):
            case Burst() as burst if burst.bytes_ and self._is_disturbing():
                self._hang_up()
                self.rounds.interrupted(self._target, now)
            case Burst() as burst:
                self._send(burst)
            case ProbeResult() as result:
                self._hang_up()
                self.rounds.measured(self._target, result, now)
                self._tell(now)
            case None:
                return

    def _is_disturbing(self) -> bool:
        """Return whether one of the two nodes of the running measurement has become busy."""
        return not {self._speaker.node, self._target.peer}.isdisjoint(self._busy())

    def _fail(self) -> None:
        now = self._reactor.now()
        before = self.rounds.links(now)
        self._hang_up()
        self.rounds.failed(self._target, now)
        if self.rounds.links(now) != before:
            self._tell(now)

    def _hang_up(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._link is not None:
            self._reactor.hang_up(self._link)
            self._link = None

    def _tell(self, now: float) -> None:
        self._published_at = now
        self._published_resting = self.rounds.resting(self._busy(), now)
        self._publish(
            LinkReading(
                node=self._speaker.node,
                links=self.rounds.links(now),
                measured_at_s=wall(),
                latency_every_s=self.rounds.latency_every_s,
                bandwidth_every_s=self.rounds.bandwidth_every_s,
                resting=self._published_resting,
            )
        )
