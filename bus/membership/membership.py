"""Who is in the cluster, as one node sees it: whom to dial, whom to believe, who fell silent.

Pure: time arrives as `now`. A *line* is one dialled address; hellos are said on it each second
and answered by whoever listens there. Every node dials every other, so that each is heard on
a line of its own. Addresses come from the settings (*seeds*, dialled for ever), from hellos, from
what linked peers say of others, and from adverts, which are only tried
(`bus.membership.mdns_hints`). A peer with several addresses is dialled on one at a time, best
first, the next one when nobody answers. (Indirect knowledge of members is SWIM's.)

Promises: a peer is `linked` on one host at a time; it is `silent` after `SILENT_S` without an
answer and linked again with its first one; a second process that claims a living node's id is
refused, and so is another namespace, or a build without a common protocol version.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.membership.mdns_hints import Advert, Hints
from bus.membership.member_types import (
    SILENT_S,
    Action,
    Dial,
    Follow,
    HangUp,
    Peer,
    PeerLine,
    Say,
    SayHello,
    Unfollow,
)
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.peers import (
    FoundBy,
    KnownPeer,
    PeerGoodbye,
    PeerHello,
    PeerPorts,
    PeerReading,
    PeerRefused,
    PeerWelcome,
)

HELLO_S = 1.0
REFUSED_S = 5.0
"""After a refusal a line says hello only so often."""
MAX_PEERS = 1_000


def host_of(address: str) -> str:
    """The host of `host:port`, brackets of an IPv6 address included."""
    return address.rpartition(":")[0]


class Membership:
    """See the module's law. The shell does each method's actions in order."""

    def __init__(
        self, me: PeerHello, seeds: Iterable[str] = (), known: Iterable[KnownPeer] = ()
    ) -> None:
        self.me = me
        self.seeds = tuple(dict.fromkeys(seeds))
        self.peers: dict[NodeId, Peer] = {}
        self.lines: dict[str, PeerLine] = {}
        self.forgotten: set[NodeId] = set()
        self.leads: dict[str, NodeId] = {}
        self.hints = Hints()
        self._said: set[str] = set()
        for peer in known:
            self._learn(peer, "memory")

    # --- what arrives ------------------------------------------------------------------------

    def heard_hello(
        self, hello: PeerHello, now: float
    ) -> tuple[PeerWelcome | PeerRefused, list[Action]]:
        """Somebody dialled us; what to answer."""
        refusal = self._cannot_join(hello, now)
        if refusal is not None:
            text = f"refused {hello.name} ({hello.node}): {refusal.message}"
            return refusal, self._say(text, hello.node)
        if hello.node == self.me.node:
            return self._welcome(self.me.protocol_max, hello.node), []
        peer = self._peer(hello.node, "hello")
        self._heard_of(peer, hello.name, hello.boot, hello.addresses, hello.ports, now)
        peer.protocol = min(self.me.protocol_max, hello.protocol_max)
        return self._welcome(peer.protocol, hello.node), []

    def heard_welcome(
        self, address: str, welcome: PeerWelcome, now: float, wall_s: float = 0.0
    ) -> list[Action]:
        """A line was answered: its node is there, and is one of us. `wall_s` is this node's clock
        (0: not read); the peer's is taken to have been read half way (Cristian's algorithm)."""
        line = self.lines.get(address)
        if line is None:
            return []
        self.leads[address] = welcome.node
        if welcome.node == self.me.node or welcome.node in self.forgotten:
            return self._hang_up(address)
        line.node, line.heard_at, line.refused = welcome.node, now, ""
        mine = address in self.seeds
        by: FoundBy = "peers" if mine else "mdns" if self.hints.named(address) else "hello"
        peer = self._peer(welcome.node, by)
        if line.said_at is not None:
            peer.round_trip_s = now - line.said_at
            if welcome.wall_s and wall_s:
                peer.clock_offset_s = welcome.wall_s - wall_s + peer.round_trip_s / 2
        self._heard_of(peer, welcome.name, welcome.boot, welcome.addresses, welcome.ports, now)
        peer.protocol = welcome.protocol
        for other in welcome.others:
            self._learn(other, "others")
        return self._link(peer, address, now)

    def heard_refused(self, address: str, refused: PeerRefused, now: float) -> list[Action]:
        """A line was answered with a no: it is asked again now and then."""
        line = self.lines.get(address)
        if line is None:
            return []
        line.heard_at, line.refused = now, refused.message
        peer = self.peers.get(refused.node)
        if peer is not None and peer.status != "linked":
            peer.status, peer.why = "refused", refused.message
        return self._say(f"{address} refused this node: {refused.message}", refused.node, address)

    def heard_goodbye(self, goodbye: PeerGoodbye, now: float) -> list[Action]:
        """A node is being taken down: nothing is expected of it."""
        peer = self.peers.get(goodbye.node)
        if peer is None or peer.boot != goodbye.boot:
            return []
        peer.status, peer.why, peer.boot, peer.spoke_at = "left", "said goodbye", None, None
        peer.boots.clear()
        return [*self._unfollow(peer), *self._lines_down(peer)]

    def heard_advert(self, advert: Advert, now: float) -> None:
        """Somebody of this cluster, as it says, is on the local network."""
        if advert.node != self.me.node and advert.node not in self.forgotten:
            self.hints.hear(advert, now)

    def forget(self, node: NodeId) -> list[Action]:
        """The operator has forgotten a node: it is dialled and answered no more."""
        self.forgotten.add(node)
        peer = self.peers.pop(node, None)
        return [] if peer is None else [*self._unfollow(peer), *self._lines_down(peer)]

    def remember(self, node: NodeId) -> None:
        """A forgotten node may come back."""
        self.forgotten.discard(node)

    # --- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """To be called several times a second."""
        actions: list[Action] = []
        for peer in self.peers.values():
            actions += self._watch(peer, now)
        for address in self.seeds:
            if address not in self.lines and not self._is_covered(address):
                actions += self._dial(address, None, now)
        actions += self._try_hints(now)
        for peer in self.peers.values():
            if peer.status != "left" or peer.spoke_at is not None:
                actions += self._redial(peer, now)
        for line in self.lines.values():
            every_s = REFUSED_S if line.refused else HELLO_S
            if line.said_at is None or now - line.said_at >= every_s:
                line.said_at = now
                actions.append(SayHello(line.address, self.hello()))
        return actions

    # --- what others may know ------------------------------------------------------------------

    def hello(self) -> PeerHello:
        """What this node says of itself."""
        return self.me

    def readings(self, now: float) -> tuple[PeerReading, ...]:
        """All peers, by node id."""
        return tuple(
            PeerReading(
                node=peer.node,
                name=peer.name,
                status=peer.status,
                host=peer.host,
                addresses=peer.addresses,
                candidate_port=peer.ports.candidate,
                protocol=peer.protocol,
                silent_s=0.0 if peer.spoke_at is None else round(now - peer.spoke_at, 2),
                round_trip_s=peer.round_trip_s,
                why=peer.why,
                found_by=peer.found_by,
                clock_offset_s=peer.clock_offset_s,
            )
            for _, peer in sorted(self.peers.items())
        )

    def strangers(self, now: float) -> tuple[str, ...]:
        """Dialled addresses where no peer was ever found, or one refuses, with what was heard."""
        return tuple(
            f"{line.address}: {line.refused or 'nobody answers'}"
            for line in self.lines.values()
            if line.refused or (self._is_vain(line) and line.is_silent(now))
        )

    def known(self) -> tuple[KnownPeer, ...]:
        """What to remember over a restart: every peer that can be dialled."""
        return tuple(
            KnownPeer(node=peer.node, addresses=peer.addresses)
            for _, peer in sorted(self.peers.items())
            if peer.addresses
        )

    # --- inside ---------------------------------------------------------------------------------

    def _is_vain(self, line: PeerLine) -> bool:
        return line.node is None and self.leads.get(line.address) not in self.peers

    def _cannot_join(self, hello: PeerHello, now: float) -> PeerRefused | None:
        me = self.me
        if hello.namespace != me.namespace:
            text = f"this is cluster {me.namespace!r}, not {hello.namespace!r}"
            return PeerRefused(node=me.node, reason="namespace", message=text)
        if hello.protocol_max < me.protocol_min or hello.protocol_min > me.protocol_max:
            text = (
                f"{hello.name} speaks protocols {hello.protocol_min} to {hello.protocol_max}, "
                f"{me.name} {me.protocol_min} to {me.protocol_max}: upgrade the older one"
            )
            return PeerRefused(node=me.node, reason="protocol", message=text)
        if hello.node in self.forgotten:
            text = f"{hello.name} was forgotten here; `shoal nodes remember {hello.node}`"
            return PeerRefused(node=me.node, reason="forgotten", message=text)
        if hello.node not in self.peers and len(self.peers) >= MAX_PEERS:
            text = f"this cluster has {MAX_PEERS} nodes already"
            return PeerRefused(node=me.node, reason="full", message=text)
        if self._is_double(hello, now):
            text = (
                f"two processes claim node id {hello.node}: a copied home? Delete its "
                "`state/node-id` on the copy and start that node again"
            )
            return PeerRefused(node=me.node, reason="duplicate", message=text)
        return None

    def _is_double(self, hello: PeerHello, now: float) -> bool:
        """Whether another living process has the id: the elder has spoken again since the
        younger appeared. A restarted process is not one, for its past is silent."""
        if hello.node == self.me.node:
            return hello.boot != self.me.boot
        boots = self._peer(hello.node, "hello").boots
        first_at, _ = boots.get(hello.boot, (now, now))
        boots[hello.boot] = (first_at, now)
        for boot in [one for one, (_, last_at) in boots.items() if now - last_at >= SILENT_S]:
            del boots[boot]
        elder_at, elder_last_at = min(boots.values())
        return elder_at < first_at < elder_last_at

    def _welcome(self, protocol: int, to: NodeId) -> PeerWelcome:
        me = self.me
        others = tuple(
            KnownPeer(node=peer.node, addresses=peer.addresses)
            for _, peer in sorted(self.peers.items())
            if peer.status == "linked" and peer.node != to and peer.addresses
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

    def _heard_of(
        self,
        peer: Peer,
        name: str,
        boot: Boot,
        addresses: tuple[str, ...],
        ports: PeerPorts,
        now: float,
    ) -> None:
        if peer.boot != boot and peer.status == "left":
            peer.status = "silent"
        peer.name, peer.boot, peer.spoke_at, peer.ports = name, boot, now, ports
        peer.addresses = tuple(dict.fromkeys(addresses)) or peer.addresses

    def _learn(self, other: KnownPeer, by: FoundBy) -> None:
        fresh = other.node not in self.peers
        if other.node == self.me.node or other.node in self.forgotten:
            return
        if fresh and len(self.peers) >= MAX_PEERS:
            return
        peer = self._peer(other.node, by)
        if not peer.addresses:
            peer.addresses = other.addresses

    def _peer(self, node: NodeId, by: FoundBy) -> Peer:
        return self.peers.setdefault(node, Peer(node, found_by=by))

    def _try_hints(self, now: float) -> list[Action]:
        """Give addresses of adverts a moment to answer, and those that did not a rest."""
        met = {peer.node for peer in self.peers.values() if peer.status == "linked"}
        actions: list[Action] = []
        for address in self.hints.tired(now, met):
            line = self.lines.get(address)
            if line is not None and line.node is None and address not in self.seeds:
                actions += self._hang_up(address)
        for address in self.hints.due(now):
            if address not in self.lines and not self._is_covered(address):
                actions += self._dial(address, None, now)
        return actions

    def _link(self, peer: Peer, address: str, now: float) -> list[Action]:
        """An answered line: follow its host, and keep no other line to the same node."""
        host = host_of(address)
        if any(one != address and self._is_good(one, now) for one in self._lines_of(peer)):
            return self._hang_up(address)
        actions: list[Action] = []
        for other in self._lines_of(peer):
            if other != address:
                actions += self._hang_up(other)
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

    def _is_good(self, address: str, now: float) -> bool:
        """A line that is answered."""
        line = self.lines[address]
        return line.heard_at is not None and not line.refused and not line.is_silent(now)

    def _watch(self, peer: Peer, now: float) -> list[Action]:
        lines = [self.lines[address] for address in self._lines_of(peer)]
        alive = any(not line.is_silent(now) and not line.refused for line in lines)
        if peer.status != "linked" or alive:
            return []
        peer.status, peer.why = "silent", f"no answer for {SILENT_S:g} s"
        return self._say(f"{peer.name or peer.node} ({peer.node}) has fallen silent", peer.node)

    def _redial(self, peer: Peer, now: float) -> list[Action]:
        """Keep exactly one line to a peer: the next address when one is silent."""
        actions: list[Action] = []
        lines = self._lines_of(peer)
        for address in lines:
            line = self.lines[address]
            elsewhere = peer.addresses not in ((), (address,))
            if elsewhere and line.is_silent(now) and not line.refused:
                actions += self._hang_up(address)
        if not self._lines_of(peer) and peer.addresses:
            address = peer.addresses[peer.tried % len(peer.addresses)]
            peer.tried += 1
            if address not in self.lines:
                actions += self._dial(address, peer.node, now)
        return actions

    def _is_covered(self, address: str) -> bool:
        """Whether dialling a seed would tell us nothing: it is our own, or leads to a node that
        is linked or forgotten."""
        node = self.leads.get(address)
        if node is None:
            return address in self.me.addresses
        peer = self.peers.get(node)
        linked = peer is not None and peer.status == "linked"
        return linked or node == self.me.node or node in self.forgotten

    def _lines_of(self, peer: Peer) -> list[str]:
        return [line.address for line in self.lines.values() if line.node == peer.node]

    def _lines_down(self, peer: Peer) -> list[Action]:
        return [action for address in self._lines_of(peer) for action in self._hang_up(address)]

    def _unfollow(self, peer: Peer) -> list[Action]:
        if peer.followed is None:
            return []
        peer.followed = None
        return [Unfollow(peer.node)]

    def _dial(self, address: str, node: NodeId | None, now: float) -> list[Action]:
        self.lines[address] = PeerLine(address, node, now)
        return [Dial(address, node)]

    def _hang_up(self, address: str) -> list[Action]:
        if self.lines.pop(address, None) is None:
            return []
        return [HangUp(address)]

    def _say(self, message: str, node: NodeId | None, address: str = "") -> list[Action]:
        """Once, until something else is said of the same node or address."""
        if message in self._said:
            return []
        self._said.add(message)
        return [Say(message, node, address)]
