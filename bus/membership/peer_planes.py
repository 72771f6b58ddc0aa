"""Talks to the switchboards of other nodes: subscribes to the messages that they publish.

Messages are published on two planes, control and telemetry. Each linked peer has one SUB socket per
plane. Received frames are passed on with the name of their plane. On-demand topics are subscribed
only while a client on this node wants them.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.links.reactor import Reactor
from bus.links.security import Security
from bus.links.traffic import Plane, Traffic
from bus.links.transport import Link
from bus.process.logs import Log
from bus.wire.errors import Exposed
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerPorts
from bus.wire.topics import TABLE

HEARTBEAT_MS = 500
HIGH_WATER = 50_000
LAST_MESSAGES = 1_000
OnFrames = Callable[[str, NodeId, list[bytes]], None]


class Dialler:
    """Connects links to other nodes, if this node's keys allow the connection."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._barred: set[str] = set()

    def connect(self, link: Link, address: str, peer: NodeId | None = None) -> bool:
        """Connect a link to an address. Return False if the keys do not allow it; then the link is
        closed, and that is logged once per address."""
        try:
            link.connect(address, peer=peer)
        except Exposed as error:
            link.close()
            if address not in self._barred:
                self._barred.add(address)
                self._log.error("cannot reach another node", why=str(error))
            return False
        return True


class PeerPlanes:
    """The subscriptions to all linked peers: to each plane (control, telemetry) of each.
    `on_frames(plane, peer, frames)` gets their messages."""

    def __init__(
        self,
        reactor: Reactor,
        dialler: Dialler,
        security: Security | None,
        traffic: Traffic,
        on_frames: OnFrames,
    ) -> None:
        self._traffic = traffic
        self._reactor = reactor
        self._dialler = dialler
        self._security = security
        self._on_frames = on_frames
        self._wanted: set[str] = set()
        self._followed: dict[NodeId, dict[str, Link]] = {}

    def want(self, prefix: str, *, wanted: bool) -> None:
        """Subscribe to an on-demand topic at all peers; if not `wanted`, unsubscribe."""
        (self._wanted.add if wanted else self._wanted.discard)(prefix)
        for plane, link in [pair for links in self._followed.values() for pair in links.items()]:
            if any(rule.prefix == prefix and rule.plane == plane for rule in TABLE):
                (link.subscribe if wanted else link.unsubscribe)(prefix)

    def follow(self, node: NodeId, host: str, ports: PeerPorts) -> None:
        """Subscribe to a peer's planes on `host`, in place of earlier subscriptions to it."""
        self.unfollow(node)
        links = self._followed[node] = {}
        planes: tuple[tuple[Plane, int], ...] = (
            ("control", ports.control),
            ("telemetry", ports.telemetry),
        )
        for plane, port in planes:
            if port:
                self._open(links, plane, f"tcp://{host}:{port}", node)

    def unfollow(self, node: NodeId) -> None:
        """End all subscriptions to a peer. Messages that have already arrived are delivered first,
        because the last one may withdraw the peer's card."""
        for plane, link in self._followed.pop(node, {}).items():
            for _ in range(LAST_MESSAGES):
                frames = link.receive()
                if frames is None:
                    break
                self._on_frames(plane, node, frames)
            self._reactor.hang_up(link)

    def close(self) -> None:
        """End all subscriptions."""
        for node in list(self._followed):
            self.unfollow(node)

    def _open(self, links: dict[str, Link], plane: Plane, address: str, node: NodeId) -> None:
        link = Link(
            "sub", high_water=HIGH_WATER, heartbeat_ms=HEARTBEAT_MS, security=self._security
        )
        if not self._dialler.connect(link, address, node):
            return
        link.tally = self._traffic.way(node, plane)
        for rule in TABLE:
            if rule.plane == plane and (not rule.on_demand or rule.prefix in self._wanted):
                link.subscribe(rule.prefix)
        self._reactor.watch(link, lambda frames: self._on_frames(plane, node, frames))
        links[plane] = link
