"""Talks to the other candidates and to this node's switchboard, on sockets.

A candidate has a DEALER to each other candidate's ROUTER, and one ROUTER of its own. The
switchboard's list of nodes names the other candidates (`know`). A heartbeat or candidacy from an
unknown node also creates a link, so that we can reply (`meet`). This module never waits and never
repeats a message: the election and the mirror send lost messages again. A peer with several
addresses that is silent for `TURN_S` is tried at its next address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bus.client import BusClient, topic_of
from bus.links.reactor import Reactor
from bus.links.transport import Change, Link
from bus.process.logs import CountedWarning, Log
from bus.wire.codec import MAX_QUESTION_BYTES, Envelope, decode
from bus.wire.errors import BadMessage, PortTaken
from bus.wire.ids import NodeId
from bus.wire.messages.control import TermHeartbeat
from bus.wire.messages.events import Event
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.wire import Message

TURN_S = 3.0
FORGET_S = 30.0
HIGH_WATER = 2_000
"""Maximum number of messages that are queued for a peer. Further messages are dropped, because they
would be obsolete when they arrive."""
BIND_RETRY_S = 5.0


def candidates_in(reading: PeersReading) -> dict[NodeId, tuple[str, ...]]:
    """Return the candidate addresses of other nodes. Omits nodes that said goodbye, nodes of
    other clusters, and nodes whose addresses are unknown."""
    return {
        peer.node: (f"tcp://{peer.host}:{peer.candidate_port}",)
        for peer in reading.peers
        if peer.host and peer.candidate_port and peer.status not in ("left", "refused")
    }


@dataclass(slots=True)
class _Peer:
    addresses: tuple[str, ...]
    link: Link
    turn: int
    turned_at: float
    heard_at: float


class CandidateLinks:
    """The links of a candidate to all others and to its node's switchboard; secured if the cluster
    has a key. `reached_at`: where other nodes reach this candidate's ROUTER, best first."""

    def __init__(
        self, client: BusClient, reactor: Reactor, log: Log, reached_at: tuple[str, ...] = ()
    ) -> None:
        self.addresses = (*reached_at, client.endpoints.candidate)
        self._client = client
        self._reactor = reactor
        self._dropped = CountedWarning(log, "dropped a reply that cannot be read")
        self._probe = Link("sub")
        self._on_message: Callable[[Message], None] = lambda _message: None
        self._peers: dict[NodeId, _Peer] = {}
        self._named: frozenset[NodeId] = frozenset()

    @property
    def nodes(self) -> frozenset[NodeId]:
        """Return all candidates that we have a link to."""
        return frozenset(self._peers)

    def listen(
        self, on_message: Callable[[Message], None], on_change: Callable[[Change], None]
    ) -> None:
        """Call `on_message` with the leader's publications and the candidates' replies, and
        `on_change` when the connection to this node's switchboard is made or lost."""
        self._on_message = on_message
        self._client.hear("term", self._published)
        self._client.hear("event.", self._published)
        self._reactor.watch_changes(self._probe, on_change)
        self._probe.connect(self._client.endpoints.plane_out("control"))

    def know(self, addresses: Mapping[NodeId, tuple[str, ...]]) -> None:
        """Set the other candidates, each with the addresses of its ROUTER, best first."""
        me, now = self._client.speaker.node, self._reactor.now()
        addresses_by_node = {
            node: its_addresses
            for node, its_addresses in addresses.items()
            if node != me and its_addresses
        }
        self._named = frozenset(addresses_by_node)
        for node, its_addresses in addresses_by_node.items():
            self._reach(node, its_addresses)
        for node in [n for n, peer in self._peers.items() if self._is_done(n, peer, now)]:
            self._leave(node)

    def meet(self, node: NodeId, addresses: tuple[str, ...]) -> None:
        """Add a candidate that has sent a message, with the `addresses` in that message."""
        if node == self._client.speaker.node:
            return
        if node not in self._peers and addresses:
            self._reach(node, addresses)
        if node in self._peers:
            self._peers[node].heard_at = self._reactor.now()

    def send(self, node: NodeId, message: Message) -> bool:
        """Send a message to one candidate. Return False if the candidate is unknown or its queue is
        full."""
        peer = self._peers.get(node)
        return peer is not None and peer.link.send(self._client.write(message))

    def spread(self, message: Message) -> None:
        """Send a message to all candidates."""
        data = self._client.write(message)
        for peer in self._peers.values():
            peer.link.send(data)

    def publish(self, message: Event | TermHeartbeat) -> None:
        """Publish an event or our heartbeat under its topic."""
        topic = "term" if isinstance(message, TermHeartbeat) else topic_of(message)
        self._client.publish(topic, message)

    def look_after(self) -> None:
        """Try the next address of silent peers and remove peers that left; call it regularly."""
        now = self._reactor.now()
        for node, peer in list(self._peers.items()):
            if self._is_done(node, peer, now):
                self._leave(node)
            elif now - max(peer.heard_at, peer.turned_at) >= TURN_S and len(peer.addresses) > 1:
                self._connect(node, peer.addresses, peer.turn + 1, peer.heard_at)

    def close(self) -> None:
        """Close the links to all candidates and to our switchboard."""
        for node in list(self._peers):
            self._leave(node)
        self._reactor.unwatch(self._probe)
        self._probe.close()

    def _reach(self, node: NodeId, addresses: tuple[str, ...]) -> None:
        peer = self._peers.get(node)
        if peer is None or peer.addresses != addresses:
            self._connect(node, addresses, 0, self._reactor.now())

    def _connect(
        self, node: NodeId, addresses: tuple[str, ...], turn: int, heard_at: float
    ) -> None:
        if node in self._peers:
            self._leave(node)
        speaker = self._client.speaker
        link = Link(
            "dealer",
            identity=f"{speaker.node}/{speaker.process}/{speaker.boot}/peer",
            high_water=HIGH_WATER,
            security=self._client.security,
        )
        link.tally = self._client.traffic.way(node, "holder")
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
            self._dropped.add(error=str(error)[:200])
            return
        self._on_message(message)

    def _published(self, _topic: str, envelope: Envelope) -> None:
        if envelope.node != self._client.speaker.node:
            self._on_message(envelope.message)


class CandidateRouter:
    """The ROUTER socket of a candidate, for other candidates and for services. `on_question` is
    called with each question and its sender. It returns the reply, or None if `answer` sends the
    reply later."""

    def __init__(
        self,
        client: BusClient,
        reactor: Reactor,
        log: Log,
        on_question: Callable[[Message, bytes], Message | None],
        *,
        listen: tuple[str, ...] = (),
    ) -> None:
        self._client = client
        self._reactor = reactor
        self._log = log
        self._dropped = CountedWarning(log, "dropped a request that cannot be read")
        self._on_question = on_question
        self._link = Link("router", max_bytes=MAX_QUESTION_BYTES, security=client.security)
        self._link.tally = client.traffic.by_identity("holder")
        self._link.bind(client.endpoints.candidate)
        for address in listen:
            self._listen(address)
        reactor.watch(self._link, self._take_question)

    def answer(self, asker: bytes, answer: Message) -> None:
        """Send a reply; it may be lost."""
        self._link.send(asker, self._client.write(answer))

    def close(self) -> None:
        """Close the ROUTER, so that no further question is received."""
        self._reactor.unwatch(self._link)
        self._link.close()

    def _listen(self, address: str) -> None:
        try:
            self._link.bind(address)
        except PortTaken as error:
            self._log.error("cannot listen for other nodes; trying again", why=str(error))
            self._reactor.later(BIND_RETRY_S, lambda: self._listen(address))

    def _take_question(self, frames: list[bytes]) -> None:
        if len(frames) != 2:
            return
        asker, payload = frames
        try:
            question = decode(payload, limit_bytes=MAX_QUESTION_BYTES).message
        except BadMessage as error:
            self._dropped.add(error=str(error)[:200])
            return
        answer = self._on_question(question, asker)
        if answer is not None:
            self.answer(asker, answer)
