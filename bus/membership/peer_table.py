"""The other nodes that one node knows of: what was last heard of each, and who may join them.

Pure: time arrives as `now`. A second process that claims a living node's id is refused, and so are
another namespace, a build without a common protocol version, and a node that was forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.membership.member_types import SILENT_S
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.peers import (
    FoundBy,
    KnownPeer,
    PeerHello,
    PeerPorts,
    PeerReading,
    PeerRefused,
    PeerStatus,
    PeerWelcome,
)

MAX_PEERS = 1_000
MAX_TURNED_AWAY = 64
TURNED_AWAY_S = 15.0
"""A node that was turned away is told of for so long after its last word."""


@dataclass(slots=True)
class Peer:
    """One other node. `boots` are the processes that spoke for it lately: when first, when last."""

    node: NodeId
    name: str = ""
    boot: Boot | None = None
    boots: dict[Boot, tuple[float, float]] = field(default_factory=dict[Boot, tuple[float, float]])
    spoke_at: float | None = None
    addresses: tuple[str, ...] = ()
    ports: PeerPorts = field(default_factory=lambda: PeerPorts(control=0, telemetry=0, candidate=0))
    protocol: int = 0
    host: str = ""
    followed: tuple[str, PeerPorts] | None = None
    status: PeerStatus = "silent"
    tried: int = 0
    round_trip_s: float | None = None
    clock_offset_s: float | None = None
    why: str = ""
    found_by: FoundBy = ""
    refused_at: float = 0.0

    def spoke(self, said: PeerHello | PeerWelcome, now: float) -> None:
        """Note what the node said of itself. A new process of a node that left is there again."""
        if self.boot != said.boot and self.status == "left":
            self.status = "silent"
        self.name, self.boot, self.spoke_at, self.ports = said.name, said.boot, now, said.ports
        self.addresses = tuple(dict.fromkeys(said.addresses)) or self.addresses

    def reading(self, now: float) -> PeerReading:
        """Return what others are told of the node."""
        return PeerReading(
            node=self.node,
            name=self.name,
            status=self.status,
            host=self.host,
            addresses=self.addresses,
            candidate_port=self.ports.candidate,
            protocol=self.protocol,
            silent_s=0.0 if self.spoke_at is None else round(now - self.spoke_at, 2),
            round_trip_s=self.round_trip_s,
            why=self.why,
            found_by=self.found_by,
            clock_offset_s=self.clock_offset_s,
        )


class PeerTable(dict[NodeId, Peer]):
    """The peers by id, at most `MAX_PEERS`, and the ids of those that were forgotten.
    `turned_away` are nodes that never were peers and may not be, or will not have this one."""

    def __init__(self, me: NodeId) -> None:
        super().__init__()
        self.me = me
        self.forgotten: set[NodeId] = set()
        self.turned_away: dict[NodeId, Peer] = {}

    def met(self, node: NodeId, by: FoundBy) -> Peer:
        """Return a node's row, a new one where it has none."""
        return self.setdefault(node, Peer(node, found_by=by))

    def learn(self, other: KnownPeer, by: FoundBy) -> None:
        """Note a node that others tell of; its addresses only while it has none of its own."""
        is_full = other.node not in self and len(self) >= MAX_PEERS
        if other.node == self.me or other.node in self.forgotten or is_full:
            return
        peer = self.met(other.node, by)
        if not peer.addresses:
            peer.addresses = other.addresses

    def turn_away(self, node: NodeId, why: str, now: float, hello: PeerHello | None = None) -> None:
        """Note that a node is not let in, or does not let this one in."""
        peer = self.get(node) or self.turned_away.get(node) or Peer(node, found_by="hello")
        peer.status, peer.why, peer.refused_at = "refused", why, now
        if hello is not None:
            peer.spoke(hello, now)
        if node not in self and (node in self.turned_away or self._has_room(now)):
            self.turned_away[node] = peer

    def refusal(self, me: PeerHello, hello: PeerHello, now: float) -> PeerRefused | None:
        """Return why a node that says hello to `me` may not join, None where it may."""
        if hello.namespace != me.namespace:
            text = f"this is cluster {me.namespace!r}, not {hello.namespace!r}"
            return PeerRefused(node=me.node, reason="namespace", message=text)
        if hello.protocol_max < me.protocol_min or hello.protocol_min > me.protocol_max:
            text = (
                f"{hello.name} speaks {_spoken(hello)}, {me.name} {_spoken(me)}: "
                "upgrade the older one"
            )
            return PeerRefused(node=me.node, reason="protocol", message=text)
        if hello.node in self.forgotten:
            text = f"{hello.name} was forgotten here; `shoal nodes remember {hello.node}`"
            return PeerRefused(node=me.node, reason="forgotten", message=text)
        if hello.node not in self and len(self) >= MAX_PEERS:
            text = f"this cluster is full: it has {MAX_PEERS} nodes, the limit"
            return PeerRefused(node=me.node, reason="full", message=text)
        if self._is_double(me, hello, now):
            text = (
                f"two nodes have the id {hello.node}, as after copying a home: delete "
                "`state/node-id` in the copy and start that node again"
            )
            return PeerRefused(node=me.node, reason="duplicate", message=text)
        return None

    def welcome(self, me: PeerHello, protocol: int, to: NodeId) -> PeerWelcome:
        """Return the answer of `me` to a node that may join, with the peers that it may dial."""
        others = tuple(
            one for one in self.known() if one.node != to and self[one.node].status == "linked"
        )
        return PeerWelcome(
            node=me.node,
            name=me.name,
            boot=me.boot,
            protocol=protocol,
            addresses=me.addresses,
            ports=me.ports,
            others=others,
        )

    def readings(self, now: float) -> tuple[PeerReading, ...]:
        """Return what others are told of every peer, by node id."""
        apart = {
            node: peer
            for node, peer in self.turned_away.items()
            if node not in self and now - peer.refused_at < TURNED_AWAY_S
        }
        return tuple(peer.reading(now) for _, peer in sorted({**self, **apart}.items()))

    def known(self) -> tuple[KnownPeer, ...]:
        """Return what to remember over a restart: every peer that can be dialled, by node id."""
        return tuple(
            KnownPeer(node=peer.node, addresses=peer.addresses)
            for _, peer in sorted(self.items())
            if peer.addresses
        )

    def _has_room(self, now: float) -> bool:
        """Return whether one more can be turned away, after those that are silent were dropped."""
        for node, peer in list(self.turned_away.items()):
            if now - peer.refused_at >= TURNED_AWAY_S:
                del self.turned_away[node]
        return len(self.turned_away) < MAX_TURNED_AWAY

    def _is_double(self, me: PeerHello, hello: PeerHello, now: float) -> bool:
        """Return whether another living process has the id: the elder has spoken again since the
        younger appeared. A restarted process is not one, for its past is silent."""
        if hello.node == me.node:
            return hello.boot != me.boot
        boots = self.met(hello.node, "hello").boots
        first_at, _ = boots.get(hello.boot, (now, now))
        boots[hello.boot] = (first_at, now)
        for boot in [old for old, (_, last_at) in boots.items() if now - last_at >= SILENT_S]:
            del boots[boot]
        elder_at, elder_last_at = min(boots.values())
        return elder_at < first_at < elder_last_at


def _spoken(hello: PeerHello) -> str:
    """Return which protocol versions a node speaks, in words."""
    least, most = hello.protocol_min, hello.protocol_max
    return f"protocol {most}" if least == most else f"protocols {least} to {most}"
