"""Who is in the cluster, as one node sees it: whom to dial, whom to believe, who fell silent.

Pure: time arrives as `now`. A *line* is one dialled address; hellos are said on it each second
and answered by the node that listens there. Every node dials every other, so that each is heard on
a line of its own. Addresses come from the settings (*seeds*, dialled for ever), from hellos, from
what linked peers say of others, and from adverts, which are only tried
(`bus.membership.mdns_hints`). A peer with several addresses is dialled on one at a time, best
first, the next one when none answers. (Indirect knowledge of members is SWIM's.)

Promises: a peer is `linked` on one host at a time; it is `silent` after `SILENT_S` without an
answer and linked again with its first one; who may not join is refused
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
"""After a refusal a line says hello only so often."""


class Membership:
    """See the module's law. The shell does each method's actions in order."""

    def __init__(
        self, me: PeerHello, seeds: Iterable[str] = (), known: Iterable[KnownPeer] = ()
    ) -> None:
        self.me = me
        self.seeds = tuple(dict.fromkeys(seeds))
        self.peers = PeerTable(me.node)
        self.lines = LineTable()
        self.hints = Hints()
        self._said: set[str] = set()
        for peer in known:
            self.peers.learn(peer, "memory")

    # --- what arrives ------------------------------------------------------------------------

    def heard_hello(
        self, hello: PeerHello, now: float
    ) -> tuple[PeerWelcome | PeerRefused, list[Action]]:
        """Answer a node that dialled this one."""
        refusal = self.peers.refusal(self.me, hello, now)
        if refusal is not None:
            text = f"refused {hello.name} ({hello.node}): {refusal.message}"
            said = self._say(text, hello.node)
            if refusal.reason in ("namespace", "protocol"):
                said += self._turn_away(hello.node, refusal.message, now, hello)
            return refusal, said
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
        """Note that a line was answered: its node is there, and is one of us. `wall_s` is this
        node's clock (0: not read); the peer's is taken to have been read half way (Cristian's
        algorithm)."""
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
        """Note that a line was answered with a no: it is asked again now and then."""
        line = self.lines.get(address)
        if line is None:
            return []
        line.heard_at, line.refused = now, refused.message
        if refused.node != self.me.node:
            self.lines.leads[address] = refused.node
        text = f"{address} refused this node: {refused.message}"
        said = self._say(text, refused.node, address)
        return said + self._turn_away(refused.node, refused.message, now)

    def heard_goodbye(self, goodbye: PeerGoodbye, now: float) -> list[Action]:
        """Expect nothing more of a node that is being taken down."""
        peer = self.peers.get(goodbye.node)
        if peer is None or peer.boot != goodbye.boot:
            return []
        peer.status, peer.why, peer.boot, peer.spoke_at = "left", "said goodbye", None, None
        peer.boots.clear()
        return self._part(peer)

    def heard_advert(self, advert: Advert, now: float) -> None:
        """Note a node that says on the local network that it is of this cluster."""
        if advert.node != self.me.node and advert.node not in self.peers.forgotten:
            self.hints.hear(advert, now)

    def leave_out(self, forgotten: Collection[NodeId]) -> list[Action]:
        """Dial and answer no node that the operator has let go, as the cluster's state has them;
        any other may come back."""
        self.peers.forgotten = set(forgotten) - {self.me.node}
        gone = [self.peers.pop(node) for node in sorted(self.peers.forgotten & set(self.peers))]
        return [action for peer in gone for action in self._part(peer)]

    # --- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """Do what is due; to be called several times a second."""
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
        """Return the dialled addresses where no peer was ever found, or one refuses, each with
        what was heard there."""
        lines, peers = self.lines, self.peers
        return tuple(
            f"{line.address}: {line.refused or 'nobody answers'}"
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
        """Give addresses of adverts a moment to answer, and those that did not a rest."""
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
        """Follow the host of an answered line, and keep no other line to the same node."""
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
            self._said.clear()
            text = f"linked with {peer.name} ({peer.node}) at {host}"
            actions.append(Say(text, peer.node, address))
        return actions

    def _turn_away(
        self, node: NodeId, why: str, now: float, hello: PeerHello | None = None
    ) -> list[Action]:
        """Have nothing to do with a node that is not one of us, or says that we are not; unless one
        with this id is linked and answers, which is then another one than spoke."""
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
        """Keep exactly one line to a peer: the next address when one is silent."""
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
        """Return whether dialling a seed would tell nothing: it is our own, or leads to a node
        that is linked or forgotten."""
        node = self.lines.leads.get(address)
        if node is None:
            return address in self.me.addresses
        peer = self.peers.get(node)
        linked = peer is not None and peer.status == "linked"
        return linked or node == self.me.node or node in self.peers.forgotten

    def _part(self, peer: Peer) -> list[Action]:
        """Follow a peer no more, and close the lines to it."""
        return [*self._unfollow(peer), *self.lines.hang_up_on(peer.node)]

    def _unfollow(self, peer: Peer) -> list[Action]:
        followed, peer.followed = peer.followed, None
        return [] if followed is None else [Unfollow(peer.node)]

    def _say(self, message: str, node: NodeId | None, address: str = "") -> list[Action]:
        """Say a thing once, until something else is said of the same node or address."""
        if message in self._said:
            return []
        self._said.add(message)
        return [Say(message, node, address)]
