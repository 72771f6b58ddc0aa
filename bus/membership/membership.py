"""The cluster's members, as one node sees them: which nodes to dial, which to trust, and which are
silent.

Pure: time arrives as `now`. A *line* is one dialled address. The dialling node sends a hello on it
every second, and the listening node answers. Every node dials every other one, so each node has its
own line to each. Addresses come from the settings (*seeds*, dialled for ever), from hellos, from
linked peers' reports about others (as in SWIM), and from adverts, which are only tried
(`bus.membership.mdns_hints`). A peer with several addresses is dialled on one at a time, best
first; if there is no answer, on the next one.

Promises: a peer is `linked` on one host at a time. It is `silent` after `SILENT_S` without an
answer, and linked again with its first answer. A node that may not join is refused
(`bus.membership.peer_table`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bus.membership.mdns_hints import Advert, Hints
from bus.membership.member_types import SILENT_S, Action, Follow, Say, SayHello, Unfollow
from bus.membership.peer_lines import LineTable
from bus.membership.peer_table import TURNED_AWAY_S, Peer, PeerTable
from bus.wire.ids import NodeId
from bus.wire.messages.peers import (
    FoundBy,
    KnownPeer,
    PeerGoodbye,
    PeerHello,
    PeerRefused,
    PeerWelcome,
)

HELLO_S = 1.0
REFUSED_S = 5.0
"""The interval of hellos on a line after a refusal."""


class Membership:
    """The members as one node sees them, by the rules in the module's docstring. The shell
    (`bus.membership.peer_links`) carries out the actions that each method returns, in order."""

    def __init__(
        self, me: PeerHello, seeds: Iterable[str] = (), saved_peers: Iterable[KnownPeer] = ()
    ) -> None:
        self.me = me
        self.seeds = tuple(dict.fromkeys(seeds))
        self.peers = PeerTable(me.node)
        self.lines = LineTable()
        self.hints = Hints()
        self._messages: set[str] = set()
        for peer in saved_peers:
            self.peers.learn(peer, "memory")

    # --- received messages -------------------------------------------------------------------

    def heard_hello(
        self, hello: PeerHello, now: float
    ) -> tuple[PeerWelcome | PeerRefused, list[Action]]:
        """Answer a node that dialled this one."""
        refusal = self.peers.refusal(self.me, hello, now)
        if refusal is not None:
            text = f"refused {hello.name} ({hello.node}): {refusal.message}"
            actions = self._say(text, hello.node)
            if refusal.reason in ("namespace", "protocol"):
                actions += self._turn_away(hello.node, refusal.message, now, hello)
            return refusal, actions
        protocol = self.me.protocol_max
        if hello.node != self.me.node:
            protocol = min(protocol, hello.protocol_max)
            peer = self.peers.met(hello.node, "hello")
            peer.spoke(hello, now)
            peer.protocol = protocol
        return self.peers.welcome(self.me, protocol, hello.node), []

    def heard_welcome(
        self, address: str, welcome: PeerWelcome, now: float, wall_s: float = 0.0
    ) -> list[Action]:
        """Process a welcome that arrived on a line (a dialled connection): the node at the other
        end is alive and is a member. `wall_s` is this node's clock (0: not read). The peer's clock
        counts as read half way through the round trip (Cristian's algorithm)."""
        line = self.lines.get(address)
        if line is None:
            return []
        self.lines.leads[address] = welcome.node
        if welcome.node == self.me.node or welcome.node in self.peers.forgotten:
            return self.lines.hang_up(address)
        line.node, line.heard_at, line.refused = welcome.node, now, ""
        mine = address in self.seeds
        by: FoundBy = "peers" if mine else "mdns" if self.hints.named(address) else "hello"
        peer = self.peers.met(welcome.node, by)
        if line.said_at is not None:
            peer.round_trip_s = now - line.said_at
            if welcome.wall_s and wall_s:
                peer.clock_offset_s = welcome.wall_s - wall_s + peer.round_trip_s / 2
        peer.spoke(welcome, now)
        peer.protocol = welcome.protocol
        for other in welcome.others:
            self.peers.learn(other, "others")
        return self._link(peer, address, now)

    def heard_refused(self, address: str, refused: PeerRefused, now: float) -> list[Action]:
        """Process a refusal that arrived on a line (a dialled connection). A hello is sent on the
        line again from time to time."""
        line = self.lines.get(address)
        if line is None:
            return []
        line.heard_at, line.refused = now, refused.message
        if refused.node != self.me.node:
            self.lines.leads[address] = refused.node
        text = f"{address} refused this node: {refused.message}"
        actions = self._say(text, refused.node, address)
        return actions + self._turn_away(refused.node, refused.message, now)

    def heard_goodbye(self, goodbye: PeerGoodbye, now: float) -> list[Action]:
        """Process the goodbye of a node that shuts down."""
        peer = self.peers.get(goodbye.node)
        if peer is None or peer.boot != goodbye.boot:
            return []
        peer.status, peer.why, peer.boot, peer.spoke_at = "left", "said goodbye", None, None
        peer.boots.clear()
        return self._part(peer)

    def heard_advert(self, advert: Advert, now: float) -> None:
        """Record an advert of a node of this cluster on the local network."""
        if advert.node != self.me.node and advert.node not in self.peers.forgotten:
            self.hints.hear(advert, now)

    def leave_out(self, forgotten: Collection[NodeId]) -> list[Action]:
        """Stop dialling and answering the nodes that are marked as forgotten in the cluster's
        state. A node without that mark may join again."""
        self.peers.forgotten = set(forgotten) - {self.me.node}
        gone = [self.peers.pop(node) for node in sorted(self.peers.forgotten & set(self.peers))]
        return [action for peer in gone for action in self._part(peer)]

    # --- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """Return all due actions. Call this several times a second."""
        actions: list[Action] = []
        for peer in self.peers.values():
            actions += self._watch(peer, now)
        for address in self.seeds:
            if address not in self.lines and not self._is_covered(address):
                actions += self.lines.dial(address, None, now)
        actions += self._try_hints(now)
        for peer in self.peers.values():
            if peer.status != "left" or peer.spoke_at is not None:
                actions += self._redial(peer, now)
        for line in self.lines.values():
            every_s = REFUSED_S if line.refused else HELLO_S
            if line.said_at is None or now - line.said_at >= every_s:
                line.said_at = now
                actions.append(SayHello(line.address, self.me))
        return actions

    def knows(self, node: NodeId) -> bool:
        """Return whether a node is this one or a peer."""
        return node == self.me.node or node in self.peers

    def strangers(self, now: float) -> tuple[str, ...]:
        """Return the dialled addresses at which no member was ever found or a node refuses this
        one, each with the refusal or `no answer`."""
        lines, peers = self.lines, self.peers
        return tuple(
            f"{line.address}: {line.refused or 'no answer'}"
            for line in lines.values()
            if line.refused
            or (
                line.node is None
                and lines.leads.get(line.address) not in peers
                and line.is_silent(now)
            )
        )

    # --- inside ---------------------------------------------------------------------------------

    def _try_hints(self, now: float) -> list[Action]:
        """Dial the addresses of some adverts for a moment; hang up on addresses without an
        answer."""
        met = {peer.node for peer in self.peers.values() if peer.status == "linked"}
        actions: list[Action] = []
        for address in self.hints.tired(now, met):
            line = self.lines.get(address)
            if line is not None and line.node is None and address not in self.seeds:
                actions += self.lines.hang_up(address)
        for address in self.hints.due(now):
            if address not in self.lines and not self._is_covered(address):
                actions += self.lines.dial(address, None, now)
        return actions

    def _link(self, peer: Peer, address: str, now: float) -> list[Action]:
        """Subscribe to a peer at the address that answered, and close all other lines (dialled
        connections) to it. If another line was answered first, close this one."""
        host = address.rpartition(":")[0]
        others = [line for line in self.lines.to(peer.node) if line.address != address]
        if any(line.is_answered(now) for line in others):
            return self.lines.hang_up(address)
        actions = [action for line in others for action in self.lines.hang_up(line.address)]
        changed = peer.status != "linked"
        peer.status, peer.why, peer.host = "linked", "", host
        wanted = (host, peer.ports)
        if peer.followed != wanted:
            peer.followed = wanted
            actions.append(Follow(peer.node, host, peer.ports))
        if changed:
            self._messages.clear()
            text = f"linked with {peer.name} ({peer.node}) at {host}"
            actions.append(Say(text, peer.node, address))
        return actions

    def _turn_away(
        self, node: NodeId, why: str, now: float, hello: PeerHello | None = None
    ) -> list[Action]:
        """Record that this node refuses another node, or is refused by it. If a linked member with
        the same id still answers, nothing changes: the refused message came from another
        process."""
        answered = any(line.is_answered(now) for line in self.lines.to(node))
        if node == self.me.node or node in self.peers.forgotten or answered:
            return []
        self.peers.turn_away(node, self.lines.refusal_by(node) or why, now, hello)
        peer = self.peers.get(node)
        return [] if peer is None else self._unfollow(peer)

    def _watch(self, peer: Peer, now: float) -> list[Action]:
        if peer.status == "refused" and now - peer.refused_at >= TURNED_AWAY_S:
            peer.status, peer.why = "silent", "no answer since its connection was refused"
        lines = self.lines.to(peer.node)
        alive = any(not line.is_silent(now) and not line.refused for line in lines)
        if peer.status != "linked" or alive:
            return []
        peer.status, peer.why = "silent", f"no answer for {SILENT_S:g} s"
        return self._say(
            f"no answer from {peer.name or peer.node} ({peer.node}) any more", peer.node
        )

    def _redial(self, peer: Peer, now: float) -> list[Action]:
        """Keep exactly one line (dialled connection) to a peer: if the peer is silent, dial its
        next address."""
        actions: list[Action] = []
        for line in self.lines.to(peer.node):
            elsewhere = peer.addresses not in ((), (line.address,))
            if elsewhere and line.is_silent(now) and not line.refused:
                actions += self.lines.hang_up(line.address)
        if not self.lines.to(peer.node) and peer.addresses:
            address = peer.addresses[peer.tried % len(peer.addresses)]
            peer.tried += 1
            if address not in self.lines:
                actions += self.lines.dial(address, peer.node, now)
        return actions

    def _is_covered(self, address: str) -> bool:
        """Return whether a seed (an address from the settings) need not be dialled: it is our own
        address, or leads to a linked or forgotten node."""
        node = self.lines.leads.get(address)
        if node is None:
            return address in self.me.addresses
        peer = self.peers.get(node)
        linked = peer is not None and peer.status == "linked"
        return linked or node == self.me.node or node in self.peers.forgotten

    def _part(self, peer: Peer) -> list[Action]:
        """Unsubscribe from a peer, and close the lines (dialled connections) to it."""
        return [*self._unfollow(peer), *self.lines.hang_up_on(peer.node)]

    def _unfollow(self, peer: Peer) -> list[Action]:
        followed, peer.followed = peer.followed, None
        return [] if followed is None else [Unfollow(peer.node)]

    def _say(self, message: str, node: NodeId | None, address: str = "") -> list[Action]:
        """Log a message. The same message is not logged again before the next new link to a
        peer."""
        if message in self._messages:
            return []
        self._messages.add(message)
        return [Say(message, node, address)]
