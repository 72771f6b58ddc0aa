"""The other nodes that this node knows. It has the last report of each, and decides which nodes may
join.

Pure: time arrives as `now`. A node is refused if it claims a living node's id, has another
namespace or no common protocol version, or is forgotten.
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
    PeersReading,
    PeerStatus,
    PeerWelcome,
)
from bus.wire.messages.wire import Message

MAX_PEERS = 1_000
MAX_TURNED_AWAY = 64
SAME_ID = "two nodes have the id"
SAME_ID_S = 5.0
"""A report that two nodes have one id is dropped after this time; switchboards repeat it every
second."""
TURNED_AWAY_S = 15.0
"""A refused node is reported for this long after its last message."""


@dataclass(slots=True)
class Peer:
    """One other node. `boots`: its recent processes, each with the times of its first and last
    message."""

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

    def spoke(self, message: PeerHello | PeerWelcome, now: float) -> None:
        """Record a node's report about itself. A node that had left counts as present again."""
        if self.boot != message.boot and self.status == "left":
            self.status = "silent"
        self.name, self.boot, self.spoke_at, self.ports = (
            message.name,
            message.boot,
            now,
            message.ports,
        )
        self.addresses = tuple(dict.fromkeys(message.addresses)) or self.addresses

    def reading(self, now: float) -> PeerReading:
        """Return what this node knows about the other node, for other services."""
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
    """The peers by id, at most `MAX_PEERS`, and the ids of forgotten nodes. `turned_away`: nodes
    that were never peers and are refused, or that refuse this one. `doubles`: the ids that two
    running nodes use, by their cards."""

    def __init__(self, me: NodeId) -> None:
        super().__init__()
        self.me = me
        self.forgotten: set[NodeId] = set()
        self.turned_away: dict[NodeId, Peer] = {}
        self.doubles: frozenset[NodeId] = frozenset()

    def met(self, node: NodeId, by: FoundBy) -> Peer:
        """Return a node's row; make one if there is none."""
        return self.setdefault(node, Peer(node, found_by=by))

    def learn(self, other: KnownPeer, by: FoundBy) -> None:
        """Record a node that other nodes report. The addresses in their reports are used only if
        the node has reported none itself."""
        is_full = other.node not in self and len(self) >= MAX_PEERS
        if other.node == self.me or other.node in self.forgotten or is_full:
            return
        peer = self.met(other.node, by)
        if not peer.addresses:
            peer.addresses = other.addresses

    def turn_away(self, node: NodeId, why: str, now: float, hello: PeerHello | None = None) -> None:
        """Record that this node refuses another node, or is refused by it."""
        peer = self.get(node) or self.turned_away.get(node) or Peer(node, found_by="hello")
        peer.status, peer.why, peer.refused_at = "refused", why, now
        if hello is not None:
            peer.spoke(hello, now)
        if node not in self and (node in self.turned_away or self._has_room(now)):
            self.turned_away[node] = peer

    def refusal(self, me: PeerHello, hello: PeerHello, now: float) -> PeerRefused | None:
        """Return why a node that sends `me` a hello may not join; None if it may."""
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
            text = f"{hello.name} was forgotten; run `shoal nodes remember {hello.node}` here"
            return PeerRefused(node=me.node, reason="forgotten", message=text)
        if hello.node not in self and len(self) >= MAX_PEERS:
            text = f"this cluster is full: it has {MAX_PEERS} nodes, the limit"
            return PeerRefused(node=me.node, reason="full", message=text)
        if self._is_double(me, hello, now):
            text = same_id_words(hello.node)
            return PeerRefused(node=me.node, reason="duplicate", message=text)
        return None

    def welcome(self, me: PeerHello, protocol: int, to: NodeId) -> PeerWelcome:
        """Return the answer of `me` to a node that may join, with the peers that this node may
        dial."""
        others = tuple(
            peer
            for peer in self.known_peers()
            if peer.node != to and self[peer.node].status == "linked"
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
        """Return the readings of all peers and refused nodes, by node id."""
        apart = {
            node: peer
            for node, peer in self.turned_away.items()
            if node not in self and now - peer.refused_at < TURNED_AWAY_S
        }
        doubles = {node: Peer(node, status="refused") for node in self.doubles - {self.me}}
        rows = sorted({**doubles, **self, **apart}.items())
        return tuple(self._reading(peer, now) for _, peer in rows)

    def _reading(self, peer: Peer, now: float) -> PeerReading:
        reading = peer.reading(now)
        if peer.node not in self.doubles:
            return reading
        return reading.model_copy(update={"why": same_id_words(peer.node)})

    def known_peers(self) -> tuple[KnownPeer, ...]:
        """Return the peers to save for the next start: all with addresses, by node id."""
        return tuple(
            KnownPeer(node=peer.node, addresses=peer.addresses)
            for _, peer in sorted(self.items())
            if peer.addresses
        )

    def _has_room(self, now: float) -> bool:
        """Return whether one more refused node can be stored, after dropping the silent ones."""
        for node, peer in list(self.turned_away.items()):
            if now - peer.refused_at >= TURNED_AWAY_S:
                del self.turned_away[node]
        return len(self.turned_away) < MAX_TURNED_AWAY

    def _is_double(self, me: PeerHello, hello: PeerHello, now: float) -> bool:
        """Return whether two living processes use the same node id: the older process has sent a
        message after the younger one appeared. A restarted node is no such case, because its old
        process is silent."""
        if hello.node == me.node:
            return hello.boot != me.boot
        boots = self.met(hello.node, "hello").boots
        first_at, _ = boots.get(hello.boot, (now, now))
        boots[hello.boot] = (first_at, now)
        for boot in [old for old, (_, last_at) in boots.items() if now - last_at >= SILENT_S]:
            del boots[boot]
        elder_at, elder_last_at = min(boots.values())
        return elder_at < first_at < elder_last_at


class SameIds:
    """The node ids that two running nodes use, as reported by switchboards. `own` is this node.
    This node's switchboard reports the ids of other nodes. If another node uses this node's own id,
    the switchboards of other nodes report it, because this node's switchboard drops the messages of
    the node with the same id."""

    def __init__(self, own: NodeId) -> None:
        self._own = own
        self._reported_at: dict[NodeId, tuple[str, float]] = {}

    def take(self, message: Message, now: float) -> None:
        """Store what a switchboard's list of its peers reports about equal ids; ignore any other
        message."""
        if not isinstance(message, PeersReading):
            return
        for peer in message.peers:
            if peer.why.startswith(SAME_ID) and self._own in (peer.node, message.node):
                self._reported_at[peer.node] = (peer.why, now)

    def reports(self, now: float) -> tuple[tuple[NodeId, str], ...]:
        """Return each id that two running nodes use, with a message about the fault and its
        remedy."""
        fresh = sorted(self._reported_at.items())
        return tuple((node, why) for node, (why, at) in fresh if now - at <= SAME_ID_S)


def same_id_words(node: NodeId) -> str:
    """Return the message about two nodes with the same id, with the remedy."""
    return (
        f"{SAME_ID} {node}, for example after copying a home: delete `state/node-id` in the "
        "copy and start that node again"
    )


def _spoken(hello: PeerHello) -> str:
    """Return the protocol versions of a node as text."""
    least, most = hello.protocol_min, hello.protocol_max
    return f"protocol {most}" if least == most else f"protocols {least} to {most}"
