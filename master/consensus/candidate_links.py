"""Talks to the other candidates: one DEALER to each one's ROUTER.

Membership says who they are (`know`); a heartbeat or candidacy of one that it has not named yet
is enough to answer it (`meet`). Nothing here waits or repeats: what is lost is lost, and the
election and the mirror ask again. A peer with several addresses that has been silent for
`TURN_S` is tried at the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bus.client import Speaker
from bus.links.reactor import Reactor
from bus.links.security import Security
from bus.links.transport import Link
from bus.process.logs import Log
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import BadMessage
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.wire import Message

TURN_S = 3.0
FORGET_S = 30.0
HIGH_WATER = 2_000
"""What a peer that is away would have to hear anyway is said again."""

OpenLink = Callable[[NodeId, str], Link]


def candidates_in(reading: PeersReading) -> dict[NodeId, tuple[str, ...]]:
    """Where the candidates of other nodes listen. Left out are those that have said goodbye, for
    they are not waited for, and those of whom it is not known yet where they answer."""
    return {
        one.node: (f"tcp://{one.host}:{one.candidate_port}",)
        for one in reading.peers
        if one.host and one.candidate_port and one.status != "left"
    }


@dataclass(slots=True)
class _Peer:
    addresses: tuple[str, ...]
    link: Link
    turn: int
    turned_at: float
    heard_at: float


class CandidateLinks:
    """The links of one candidate to all others. `open_link(node, identity)` makes an unconnected
    DEALER (secured where the cluster has a key); `on_answer` gets what comes back on them."""

    def __init__(
        self,
        speaker: Speaker,
        reactor: Reactor,
        log: Log,
        *,
        envelope: Callable[[Message], Envelope],
        on_answer: Callable[[Message], None],
        open_link: OpenLink | None = None,
    ) -> None:
        self._speaker = speaker
        self._reactor = reactor
        self._log = log
        self._envelope = envelope
        self._on_answer = on_answer
        self._open_link = open_link or link_maker(None)
        self._peers: dict[NodeId, _Peer] = {}
        self._named: frozenset[NodeId] = frozenset()

    @property
    def nodes(self) -> frozenset[NodeId]:
        """All that can be sent to."""
        return frozenset(self._peers)

    def know(self, addresses: Mapping[NodeId, tuple[str, ...]]) -> None:
        """These are the other candidates, with the addresses of their ROUTERs, best first."""
        me, now = self._speaker.node, self._reactor.now()
        named = {node: where for node, where in addresses.items() if node != me and where}
        self._named = frozenset(named)
        for node, where in named.items():
            self._reach(node, where)
        for node in [n for n, peer in self._peers.items() if self._is_done(n, peer, now)]:
            self._leave(node)

    def meet(self, node: NodeId, addresses: tuple[str, ...]) -> None:
        """A candidate has spoken; `addresses` are where it says it is."""
        if node == self._speaker.node:
            return
        if node not in self._peers and addresses:
            self._reach(node, addresses)
        if node in self._peers:
            self._peers[node].heard_at = self._reactor.now()

    def send(self, node: NodeId, message: Message) -> bool:
        """To one; False when it is unknown or does not take any more."""
        peer = self._peers.get(node)
        return peer is not None and peer.link.send(encode(self._envelope(message)))

    def spread(self, message: Message) -> None:
        """To all."""
        data = encode(self._envelope(message))
        for peer in self._peers.values():
            peer.link.send(data)

    def look_after(self) -> None:
        """To be called now and then: turn to other addresses, forget who has gone."""
        now = self._reactor.now()
        for node, peer in list(self._peers.items()):
            if self._is_done(node, peer, now):
                self._leave(node)
            elif now - max(peer.heard_at, peer.turned_at) >= TURN_S and len(peer.addresses) > 1:
                self._connect(node, peer.addresses, peer.turn + 1, peer.heard_at)

    def close(self) -> None:
        """Close every link."""
        for node in list(self._peers):
            self._leave(node)

    def _reach(self, node: NodeId, addresses: tuple[str, ...]) -> None:
        known = self._peers.get(node)
        if known is None or known.addresses != addresses:
            self._connect(node, addresses, 0, self._reactor.now())

    def _connect(
        self, node: NodeId, addresses: tuple[str, ...], turn: int, heard_at: float
    ) -> None:
        if node in self._peers:
            self._leave(node)
        speaker = self._speaker
        link = self._open_link(node, f"{speaker.node}/{speaker.process}/{speaker.boot}/peer")
        link.connect(addresses[turn % len(addresses)], peer=node)
        self._reactor.watch(link, self._answered)
        self._peers[node] = _Peer(addresses, link, turn, self._reactor.now(), heard_at)

    def _leave(self, node: NodeId) -> None:
        peer = self._peers.pop(node)
        self._reactor.unwatch(peer.link)
        peer.link.close()

    def _is_done(self, node: NodeId, peer: _Peer, now: float) -> bool:
        return node not in self._named and now - peer.heard_at >= FORGET_S

    def _answered(self, frames: list[bytes]) -> None:
        try:
            message = decode(frames[-1]).message
        except BadMessage as error:
            self._log.warning("dropped an answer", error=str(error)[:200])
            return
        self._on_answer(message)


def link_maker(security: Security | None) -> OpenLink:
    """DEALERs to other candidates, secured where the cluster has a key."""

    def open_link(_node: NodeId, identity: str) -> Link:
        return Link("dealer", identity=identity, high_water=HIGH_WATER, security=security)

    return open_link
