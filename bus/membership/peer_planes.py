"""Talks to the planes that other switchboards publish on: one SUB a plane for each linked peer.

What comes in there is given on with its plane. Topics on demand are asked for only while wanted.
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
OnFrames = Callable[[str, list[bytes]], None]


class Dialler:
    """Connects links to other nodes, as far as the keys at hand allow it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._barred: set[str] = set()

    def connect(self, link: Link, address: str, peer: NodeId | None = None) -> bool:
        """Connect a link to an address; False where the keys do not allow it, which closes the
        link and is logged once for each address."""
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
    """The planes of all peers that are followed. `on_frames(plane, frames)` gets what comes."""

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
        """Ask peers for an on-demand topic, or for it no more."""
        (self._wanted.add if wanted else self._wanted.discard)(prefix)
        for plane, link in [pair for links in self._followed.values() for pair in links.items()]:
            if any(rule.prefix == prefix and rule.plane == plane for rule in TABLE):
                (link.subscribe if wanted else link.unsubscribe)(prefix)

    def follow(self, node: NodeId, host: str, ports: PeerPorts) -> None:
        """Subscribe to a peer's planes on `host`; replaces what was followed of it before."""
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
        """Subscribe to nothing of a peer any more."""
        for link in self._followed.pop(node, {}).values():
            self._reactor.hang_up(link)

    def close(self) -> None:
        """Follow no peer any more."""
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
        self._reactor.watch(link, lambda frames: self._on_frames(plane, frames))
        links[plane] = link
