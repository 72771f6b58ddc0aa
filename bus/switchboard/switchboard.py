"""Talks to every local service and to peers: forwards the messages of both planes (control,
telemetry), stores retained values.

Each plane has its own pair of sockets, so that a flood of telemetry never delays an event. Only a
new subscriber gets the matching retained values, as one *bundle*: [prefix, topic, payload, topic,
payload, ...]. A bundle has an odd number of frames, all other messages have two. The tap, at which
an operator watches messages, has its own socket, which drops messages if its reader lags. Messages
of local services also go to peers, on one TCP socket per plane; messages of peers go only to local
services. Only cards go on to peers that cannot dial their nodes (decision 0103). Topics *on demand*
(tokens) are requested from publishers only while a local service wants them. With peers, the
switchboard follows the cluster's state as any service does, because the state names the forgotten
nodes.
"""

from __future__ import annotations

import time

from bus.client import BusClient, Letters, Speaker
from bus.links.keyring import Keyring
from bus.links.reactor import Reactor
from bus.links.traffic import Plane, Traffic
from bus.links.transport import Link
from bus.membership.card_exchange import RELAY_S, CardExchange
from bus.membership.peer_links import PeerLinks, PeerSettings
from bus.membership.peer_planes import HEARTBEAT_MS
from bus.process.clock import now as clock_now
from bus.process.endpoints import Endpoints
from bus.process.logs import CountedWarning, Log
from bus.survey import LinkSurvey, busy_nodes, tell_unmeasured
from bus.switchboard.card_relay import CardRelay
from bus.switchboard.retained import Retained, RetainedValue
from bus.wire.codec import decode
from bus.wire.errors import BadMessage, PortTaken
from bus.wire.ids import NodeId
from bus.wire.messages.readings import CardReading, LinkReading
from bus.wire.messages.wire import Message
from bus.wire.topics import RELAYED, TABLE, Topic, reading_topic, rule_for

PLANES: tuple[Plane, ...] = ("control", "telemetry")
TAP_HIGH_WATER = 1_000
EXPIRE_S = 5.0


class PlaneForwarder:
    """One plane (control or telemetry): forwards messages from its XSUB socket, to which services
    send, to its XPUB socket, to which they subscribe, and to the tap."""

    def __init__(self, plane: Plane, board: Switchboard) -> None:
        self.plane: Plane = plane
        self.board = board
        self.retained = Retained()
        self.incoming = Link("xsub", high_water=50_000)
        self.outgoing = Link("xpub", high_water=50_000)
        self.outgoing.manual_subscriptions()
        self.incoming.bind(board.endpoints.plane_in(plane))
        self.outgoing.bind(board.endpoints.plane_out(plane))
        self.incoming.send(b"\x01")
        self.abroad: Link | None = None
        board.reactor.watch(self.incoming, self._forward)
        board.reactor.watch(self.outgoing, lambda f: self._subscription(self.outgoing, f))

    def open_abroad(self, address: str) -> None:
        """Open the TCP socket on which peers subscribe to this plane. Raises PortTaken."""
        security = None if self.board.keyring is None else self.board.keyring.node
        link = Link("xpub", high_water=50_000, heartbeat_ms=HEARTBEAT_MS, security=security)
        link.manual_subscriptions()
        try:
            link.bind(address)
        except PortTaken:
            link.close()
            raise
        self.abroad = link
        self.board.reactor.watch(link, lambda frames: self._subscription(link, frames))

    def ask_upstream(self, prefix: str, *, wanted: bool) -> None:
        """Tell the services that publish an on-demand topic whether anyone wants it."""
        self.incoming.send((b"\x01" if wanted else b"\x00") + prefix.encode())

    def from_peer(self, peer: NodeId, frames: list[bytes]) -> None:
        """Deliver a peer's message, or its bundle of retained values, to local services."""
        if len(frames) % 2:
            for topic, payload in zip(frames[1::2], frames[2::2], strict=True):
                self._deliver([topic, payload], peer)
        else:
            self._deliver(frames, peer)

    def send_abroad(self, topic: str, payload: bytes) -> None:
        """Send a message to peers only."""
        frames = [topic.encode(), payload]
        if self.abroad is not None and self.abroad.send(*frames):
            self.board.published(self.plane, frames)

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message on this plane, as if a local service had sent it."""
        self._forward([topic.encode(), payload])

    def close(self) -> None:
        """Close the sockets."""
        for link in (self.incoming, self.outgoing, self.abroad):
            if link is not None:
                self.board.reactor.hang_up(link)

    def _forward(self, frames: list[bytes]) -> None:
        if self._deliver(frames) and self.abroad is not None and self.abroad.send(*frames):
            self.board.published(self.plane, frames)

    def _deliver(self, frames: list[bytes], peer: NodeId | None = None) -> bool:
        """Deliver a message to local services and the tap; False if it is invalid or an outdated
        value. `peer`: the sender, None for a local service."""
        if len(frames) != 2:
            self.board.refuse(self.plane, "a message must have two frames")
            return False
        topic = frames[0].decode(errors="replace")
        rule = rule_for(topic)
        if rule is None or rule.plane != self.plane:
            self.board.refuse(self.plane, f"unknown topic {topic[:60]!r}")
            return False
        if rule.retained and not self._keep(topic, frames[1], rule, peer):
            return False
        self.outgoing.send(*frames)
        self.board.tap.send(*frames)
        return True

    def _keep(self, topic: str, payload: bytes, rule: Topic, peer: NodeId | None) -> bool:
        try:
            envelope = decode(payload)
        except BadMessage as error:
            self.board.refuse(self.plane, str(error)[:120])
            return False
        is_relayed = rule.prefix == RELAYED
        may_send = not is_relayed if peer is None else is_relayed or envelope.node == peer
        if not may_send or (peer is not None and not _is_about(topic, rule, envelope.node)):
            self.board.refuse(self.plane, f"{peer or 'a service'} may not send {topic[:60]!r}")
            return False
        value = RetainedValue(envelope.boot, envelope.seq, payload, clock_now() + rule.ttl_s)
        origin = f"{envelope.node}/{envelope.process}"
        cards = self.board.cards
        if cards is not None and not cards.accepts(envelope, payload, peer):
            return False
        if cards is None or rule.message is not CardReading:
            return self.retained.keep(topic, origin, value)
        self.retained.replace(topic, origin, value)
        return True

    def _subscription(self, link: Link, frames: list[bytes]) -> None:
        if not frames or frames[0][:1] not in (b"\x00", b"\x01"):
            return
        wanted, raw = frames[0][:1] == b"\x01", frames[0][1:]
        link.accept(raw, wanted=wanted)
        prefix = raw.decode(errors="replace")
        bundle = [raw]
        me = self.board.speaker
        origin = "" if link is self.outgoing or me is None else f"{me.node}/"
        if wanted:
            for topic, payload in self.retained.matching(prefix, clock_now(), origin):
                bundle += [topic.encode(), payload]
        # Exactly one send follows every subscription message: see decision 0001.
        link.send(*bundle)
        self.board.demand(self.plane, prefix, wanted=wanted, here=link is self.outgoing)


class Switchboard:
    """Both planes and the tap of one node, and its links to peers if it has `peer_settings`."""

    def __init__(
        self,
        endpoints: Endpoints,
        reactor: Reactor,
        log: Log,
        speaker: Speaker | None = None,
        peer_settings: PeerSettings | None = None,
        keyring: Keyring | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.keyring = keyring
        self.traffic = traffic or Traffic(NodeId("") if speaker is None else speaker.node)
        self.speaker = speaker
        self._letters = None if speaker is None else Letters(speaker)
        self.endpoints = endpoints
        self.reactor = reactor
        self.log = log
        self.refused = CountedWarning(log, "dropped a message")
        self.demands: dict[tuple[str, bool], int] = {}
        self.tap = Link("xpub", high_water=TAP_HIGH_WATER)
        self.tap.bind(endpoints.tap)
        self.planes = {plane: PlaneForwarder(plane, self) for plane in PLANES}
        reactor.watch(self.tap, self._tapped)
        reactor.every(EXPIRE_S, self._expire)
        self._settings = peer_settings
        self.cards: CardRelay | None = None
        self.peers: PeerLinks | None = None
        self.surveyor: LinkSurvey | None = None
        self._client: BusClient | None = None
        if speaker is not None and peer_settings is not None:
            self.peers = PeerLinks(
                speaker,
                peer_settings,
                reactor,
                log,
                self._from_peer,
                self.planes["telemetry"].publish,
                keyring,
                self.traffic,
            )
            table, send = self.peers.membership.peers, self.planes["telemetry"].send_abroad
            self.cards = CardRelay(speaker, table, send, log)
            reactor.every(RELAY_S, self.cards.pass_on)
            self._client = self._follow_state(speaker, self.peers, self.cards.exchange)
            if peer_settings.measures:
                self.surveyor = LinkSurvey(
                    speaker,
                    reactor,
                    self.peers.ways,
                    self._busy_nodes,
                    self._publish_links,
                    self.peers.door_security,
                    self.traffic,
                )
            else:
                tell_unmeasured(speaker.node, reactor, self._publish_links)
            if peer_settings.listen:
                self._open_abroad()

    def published(self, plane: Plane, frames: list[bytes]) -> None:
        """Count a message that was published to peers. On-demand topics are not counted here,
        because their subscribers are unknown; their readers count them."""
        rule = rule_for(frames[0].decode(errors="replace"))
        if self.peers is not None and rule is not None and not rule.on_demand:
            self.peers.count_published(plane, sum(map(len, frames)))

    def refuse(self, plane: str, why: str) -> None:
        """Count a dropped message, and log some of them."""
        self.refused.add(plane=plane, why=why)

    def demand(self, plane: str, prefix: str, *, wanted: bool, here: bool = True) -> None:
        """Count the demand for an on-demand topic, on this node (`here`) and on peers. Tell the
        publishers when the first subscriber appears and when the last one is gone. Tell peers about
        subscribers on this node, too."""
        for rule in TABLE:
            if not rule.on_demand or rule.plane != plane or not _overlap(prefix, rule.prefix):
                continue
            before, abroad = self.demands.get((rule.prefix, here), 0), (rule.prefix, not here)
            after = max(0, before + (1 if wanted else -1))
            self.demands[rule.prefix, here] = after
            if (before == 0) == (after == 0):
                continue
            if not self.demands.get(abroad, 0):
                self.planes[plane].ask_upstream(rule.prefix, wanted=after > 0)
            if here and self.peers is not None:
                self.peers.planes.want(rule.prefix, wanted=after > 0)

    def _follow_state(
        self, speaker: Speaker, peers: PeerLinks, exchange: CardExchange
    ) -> BusClient:
        """Return a client that follows the cluster's state. After each event and each snapshot, it
        tells `peers` and `exchange` which nodes are forgotten."""
        security = None if self.keyring is None else self.keyring.node
        client = BusClient(
            speaker,
            self.endpoints,
            self.reactor,
            self.log,
            security=security,
            traffic=self.traffic,
        )
        client.on_state.append(lambda state: peers.leave_out(state.forgotten))
        client.on_state.append(lambda state: exchange.leave_out(state.forgotten))
        return client

    def _tapped(self, frames: list[bytes]) -> None:
        if not frames or frames[0][:1] not in (b"\x00", b"\x01"):
            return
        wanted, raw = frames[0][:1] == b"\x01", frames[0][1:]
        for plane in self.planes:
            self.demand(plane, raw.decode(errors="replace"), wanted=wanted)

    def _from_peer(self, plane: str, peer: NodeId, frames: list[bytes]) -> None:
        self.planes[plane].from_peer(peer, frames)

    def _publish_links(self, reading: LinkReading) -> None:
        assert self._letters is not None, "this node has no peers, so it has no links to measure"
        topic = reading_topic("link", reading.node)
        self.planes["telemetry"].publish(topic, self._letters.write(reading))

    def _busy_nodes(self) -> set[NodeId]:
        retained = self.planes["telemetry"].retained
        messages: list[Message] = []
        for prefix in ("reading.runner", "reading.weights"):
            messages += [
                decode(payload).message for _, payload in retained.matching(prefix, clock_now())
            ]
        return busy_nodes(messages)

    def _open_abroad(self) -> None:
        settings = self._settings
        assert settings is not None, "no peers are configured"
        ports = {"control": settings.ports.control, "telemetry": settings.ports.telemetry}
        try:
            for plane, forwarder in self.planes.items():
                if forwarder.abroad is None:
                    forwarder.open_abroad(f"tcp://{settings.listen}:{ports[plane]}")
        except PortTaken as error:
            self.log.error("cannot publish to other nodes; trying again", why=str(error))
            self.reactor.later(settings.timing.bind_retry_s, self._open_abroad)

    def _expire(self) -> None:
        for forwarder in self.planes.values():
            forwarder.retained.expire(clock_now())

    def close(self) -> None:
        """Say goodbye to peers; close every socket and remove its file."""
        if self.cards is not None and self._settings is not None and self.cards.say_goodbye():
            time.sleep(self._settings.timing.last_words_s)
        if self._client is not None:
            self._client.close()
        if self.surveyor is not None:
            self.surveyor.close()
        if self.peers is not None:
            self.peers.close()
        for forwarder in self.planes.values():
            forwarder.close()
        self.reactor.hang_up(self.tap)


def _is_about(topic: str, rule: Topic, node: NodeId) -> bool:
    """Return whether a card's topic names the node that the card describes; True for other
    topics."""
    return rule.message is not CardReading or topic == f"{rule.prefix}.{node}"


def _overlap(prefix: str, topic: str) -> bool:
    """Return whether a subscription to `prefix` asks for the on-demand topic `topic`. The empty
    prefix does not, so that a subscription to everything does not make runners publish tokens."""
    return prefix != "" and (prefix.startswith(topic) or topic.startswith(prefix))
