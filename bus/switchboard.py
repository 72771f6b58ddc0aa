"""Talks to every local service: forwards both planes, keeps retained values, feeds the tap.

Each plane is its own pair of sockets, so that a flood of telemetry never delays an event. A
new subscriber alone is given the retained values that match, as one *bundle*: [prefix, topic,
payload, topic, payload, ...], an odd number of frames, where all else has two. The tap has a
socket of its own that drops when its reader lags. Topics *on demand* (tokens) are asked for
upstream only while somebody subscribes to them here or at the tap.
"""

from __future__ import annotations

from bus.clock import now as clock_now
from bus.codec import decode
from bus.endpoints import Endpoints
from bus.errors import BadMessage
from bus.logs import Log
from bus.loops import Reactor
from bus.retained import Kept, Retained
from bus.topics import TABLE, rule_for
from bus.transport import Link

PLANES = ("control", "telemetry")
TAP_HIGH_WATER = 1_000
EXPIRE_S = 5.0


class PlaneForwarder:
    """One plane: what comes in at XSUB goes out at XPUB and to the tap."""

    def __init__(self, plane: str, board: Switchboard) -> None:
        self.plane = plane
        self.board = board
        self.retained = Retained()
        self.incoming = Link("xsub", high_water=50_000)
        self.outgoing = Link("xpub", high_water=50_000)
        self.outgoing.manual_subscriptions()
        self.incoming.bind(board.endpoints.plane_in(plane))
        self.outgoing.bind(board.endpoints.plane_out(plane))
        self.incoming.send(b"\x01")
        board.reactor.watch(self.incoming, self._forward)
        board.reactor.watch(self.outgoing, self._subscription)

    def ask_upstream(self, prefix: str, *, wanted: bool) -> None:
        """Pass the wish for an on-demand topic on to the publishers."""
        self.incoming.send((b"\x01" if wanted else b"\x00") + prefix.encode())

    def _forward(self, frames: list[bytes]) -> None:
        if len(frames) != 2:
            self.board.refuse(self.plane, "a message of other than two frames")
            return
        topic = frames[0].decode(errors="replace")
        rule = rule_for(topic)
        if rule is None or rule.plane != self.plane:
            self.board.refuse(self.plane, f"topic {topic[:60]!r} is not in the table")
            return
        if rule.retained and not self._keep(topic, frames[1], rule.ttl_s):
            return
        self.outgoing.send(*frames)
        self.board.tap.send(*frames)

    def _keep(self, topic: str, payload: bytes, ttl_s: float) -> bool:
        try:
            envelope = decode(payload)
        except BadMessage as error:
            self.board.refuse(self.plane, str(error)[:120])
            return False
        expires_at = clock_now() + ttl_s if ttl_s > 0 else None
        kept = Kept(envelope.boot, envelope.seq, payload, expires_at)
        return self.retained.keep(topic, f"{envelope.node}/{envelope.process}", kept)

    def _subscription(self, frames: list[bytes]) -> None:
        if not frames or frames[0][:1] not in (b"\x00", b"\x01"):
            return
        wanted, raw = frames[0][:1] == b"\x01", frames[0][1:]
        self.outgoing.accept(raw, wanted=wanted)
        prefix = raw.decode(errors="replace")
        bundle = [raw]
        for topic, payload in self.retained.matching(prefix, clock_now()) if wanted else ():
            bundle += [topic.encode(), payload]
        # Exactly one send follows every subscription message: see decision 0001.
        self.outgoing.send(*bundle)
        self.board.demand(self.plane, prefix, wanted=wanted)


class Switchboard:
    """Both planes and the tap of one node."""

    def __init__(self, endpoints: Endpoints, reactor: Reactor, log: Log) -> None:
        self.endpoints = endpoints
        self.reactor = reactor
        self.log = log
        self.refused = 0
        self.wishes: dict[str, int] = {}
        self.tap = Link("xpub", high_water=TAP_HIGH_WATER)
        self.tap.bind(endpoints.tap)
        self.planes = {plane: PlaneForwarder(plane, self) for plane in PLANES}
        reactor.watch(self.tap, self._tapped)
        reactor.every(EXPIRE_S, self._expire)

    def refuse(self, plane: str, why: str) -> None:
        """Count what is dropped; say so at the 1st, 10th, 100th, ... time."""
        self.refused += 1
        if str(self.refused).strip("0") == "1":
            self.log.warning("dropped a message", plane=plane, why=why, so_far=self.refused)

    def demand(self, plane: str, prefix: str, *, wanted: bool) -> None:
        """Count who wants an on-demand topic; tell the publishers at the first and last."""
        for rule in TABLE:
            if not rule.on_demand or rule.plane != plane or not _overlap(prefix, rule.prefix):
                continue
            before = self.wishes.get(rule.prefix, 0)
            after = max(0, before + (1 if wanted else -1))
            self.wishes[rule.prefix] = after
            if (before == 0) != (after == 0):
                self.planes[plane].ask_upstream(rule.prefix, wanted=after > 0)

    def _tapped(self, frames: list[bytes]) -> None:
        if not frames or frames[0][:1] not in (b"\x00", b"\x01"):
            return
        wanted, raw = frames[0][:1] == b"\x01", frames[0][1:]
        for plane in self.planes:
            self.demand(plane, raw.decode(errors="replace"), wanted=wanted)

    def _expire(self) -> None:
        for forwarder in self.planes.values():
            forwarder.retained.expire(clock_now())

    def close(self) -> None:
        """Close every socket and remove its file."""
        for link in (
            self.tap,
            *(p.incoming for p in self.planes.values()),
            *(p.outgoing for p in self.planes.values()),
        ):
            self.reactor.unwatch(link)
            link.close()


def _overlap(prefix: str, topic: str) -> bool:
    """Whether a subscription to `prefix` asks for `topic` by name: the empty one does not, so
    that watching everything does not make tokens flow."""
    return prefix != "" and (prefix.startswith(topic) or topic.startswith(prefix))
