"""Talks to the doors of other switchboards to measure the links to them, while they are idle.

Each measurement has a connection of its own, with the door's keys, so that no hello waits
behind it; what to send is `bus.survey.link_probe`'s to say, and when `bus.survey.probe_schedule`'.
The results are published as `LinkReading`s, on change and each minute.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence

from bus.client import Speaker
from bus.links.reactor import Reactor, Timer
from bus.links.security import Security
from bus.links.transport import Link
from bus.process.clock import wall
from bus.survey.link_probe import FRAME_BYTES, Burst, LinkProbe, ProbeResult
from bus.survey.probe_schedule import ProbeSchedule, ProbeTarget
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import BadMessage, Exposed
from bus.wire.ids import NodeId
from bus.wire.messages.peers import LinkEcho, LinkEchoed
from bus.wire.messages.readings import LinkReading

TICK_S = 1.0
PUBLISH_S = 60.0
DEADLINE_S = 3.0


class LinkSurvey:
    """Measures one link at a time. `addresses()` are those of the linked peers and our own one,
    `busy()` the nodes that are not to be disturbed."""

    def __init__(
        self,
        speaker: Speaker,
        reactor: Reactor,
        addresses: Callable[[], Mapping[NodeId, Sequence[str]]],
        busy: Callable[[], Collection[NodeId]],
        publish: Callable[[LinkReading], None],
        security: Security | None = None,
    ) -> None:
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
        self._told_at = reactor.now()
        self._timer = reactor.every(TICK_S, self._tick)

    def close(self) -> None:
        """Measure nothing more."""
        self._timer.cancel()
        self._hang_up()

    def _tick(self) -> None:
        now = self._reactor.now()
        if self._link is None:
            busy = self._busy()
            target = self.rounds.choose(self._addresses(), busy, now, random.random())
            if target is not None:
                self._measure(target, now)
        if now - self._told_at >= PUBLISH_S:
            self._tell(now)

    def _measure(self, target: ProbeTarget, now: float) -> None:
        link = Link("dealer", security=self._security)
        try:
            link.connect(f"tcp://{target.address}")
        except Exposed:
            link.close()
            self.rounds.failed(target, now)
            return
        baseline = target.peer == self._speaker.node
        self._link, self._target = link, target
        self._gauge = LinkProbe(0 if baseline else target.most_bytes)
        self._reactor.watch(link, self._answered)
        self._deadline = self._reactor.later(DEADLINE_S, self._fail)
        self._send(self._gauge.start(now))

    def _send(self, burst: Burst) -> None:
        assert self._link is not None, "a measurement is under way"
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
            case Burst() as burst:
                self._send(burst)
            case ProbeResult() as found:
                self._hang_up()
                self.rounds.measured(self._target, found, now)
                self._tell(now)
            case None:
                return

    def _fail(self) -> None:
        now = self._reactor.now()
        known = self.rounds.links(now)
        self._hang_up()
        self.rounds.failed(self._target, now)
        if self.rounds.links(now) != known:
            self._tell(now)

    def _hang_up(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._link is not None:
            self._reactor.hang_up(self._link)
            self._link = None

    def _tell(self, now: float) -> None:
        self._told_at = now
        links = self.rounds.links(now)
        self._publish(LinkReading(node=self._speaker.node, links=links, measured_at_s=wall()))
