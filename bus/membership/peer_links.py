"""Talks to the switchboards of other nodes: dials and answers them, subscribes to their messages,
and reports the peers.

This is the shell around `bus.membership.membership`: it sends and receives what that module
decides. It listens on one TCP port for hellos. It has one DEALER socket for each address that it
dials. For each linked peer it has one SUB socket per plane (control, telemetry). Messages from
peers go to this node's switchboard. It passes only cards on (`bus.membership.card_exchange`),
because every node should be linked with every other one. A file stores the peers, so that a node
finds its cluster again when the addresses in its settings no longer answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from bus.client import Letters, Speaker
from bus.links.keyring import Keyring
from bus.links.reactor import Reactor
from bus.links.traffic import Plane, Traffic
from bus.links.transport import Link
from bus.membership.discovery import Discovery, Place
from bus.membership.mdns_hints import Advert
from bus.membership.member_types import Action, Dial, Follow, HangUp, Say, SayHello, Unfollow
from bus.membership.membership import Membership
from bus.membership.peer_memory import PeerMemory, Remembered
from bus.membership.peer_planes import HEARTBEAT_MS, Dialler, OnFrames, PeerPlanes
from bus.process.clock import wall
from bus.process.endpoints import WILDCARDS
from bus.process.logs import CountedWarning, Log
from bus.wire.codec import decode
from bus.wire.errors import BadKey, BadMessage, PortTaken
from bus.wire.ids import NodeId
from bus.wire.messages.peers import (
    LinkEcho,
    LinkEchoed,
    PeerGoodbye,
    PeerHello,
    PeerPorts,
    PeerRefused,
    PeersReading,
    PeerWelcome,
)
from bus.wire.messages.wire import PROTOCOL_MAX, Message
from bus.wire.topics import reading_topic


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """Intervals in seconds. `reading_s`: between two reports on the peers if nothing changes;
    `alone_reading_s`: the same for a node without peers and strangers. `last_words_s`: the time in
    which the goodbyes are sent before the process ends."""

    tick_s: float = 0.25
    reading_s: float = 1.0
    alone_reading_s: float = 5.0
    look_s: float = 10.0
    bind_retry_s: float = 5.0
    last_words_s: float = 0.05


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Settings of the links to other nodes. `listen`: a host; empty for a node that joins no
    cluster. `addresses`: the hosts reported to others, best first. `port`: the port for hellos.
    `seeds`: `host:port`s to dial. `discovery`: find others by mDNS, and be found. `measures`:
    measure the links to others. `look` finds the current addresses of a machine that moves; None:
    they are fixed."""

    name: str
    namespace: str
    listen: str
    addresses: tuple[str, ...]
    port: int
    ports: PeerPorts
    seeds: tuple[str, ...]
    file: Path
    discovery: bool = False
    measures: bool = True
    look: Callable[[], tuple[str, ...]] | None = None
    timing: PeerTiming = PeerTiming()


class PeerLinks:
    """All links with other nodes. `on_frames(plane, peer, frames)` is called with the messages that
    they publish."""

    def __init__(
        self,
        speaker: Speaker,
        settings: PeerSettings,
        reactor: Reactor,
        log: Log,
        on_frames: OnFrames,
        publish: Callable[[str, bytes], None],
        keyring: Keyring | None,
        traffic: Traffic,
    ) -> None:
        self._keyring = keyring
        self._traffic = traffic
        self.door_security = None if keyring is None else keyring.door
        self._speaker = speaker
        self._settings = settings
        self._reactor = reactor
        self._log = log
        self._publish = publish
        self._letters = Letters(speaker)
        self._dropped = CountedWarning(log, "dropped a message of a peer that cannot be decoded")
        self._dialler = Dialler(log)
        node_security = None if keyring is None else keyring.node
        self.planes = PeerPlanes(reactor, self._dialler, node_security, traffic, on_frames)
        self._lines: dict[str, Link] = {}
        self._door: Link | None = None
        self._memory = PeerMemory(settings.file, log)
        self._left_out: Collection[NodeId] | None = None
        self._published_facts: tuple[object, ...] = ()
        self._published_at = 0.0
        me = PeerHello(
            node=speaker.node,
            name=settings.name,
            boot=speaker.boot,
            namespace=settings.namespace,
            protocol_min=PROTOCOL_MAX,
            protocol_max=PROTOCOL_MAX,
            addresses=self._dialled_at(settings.addresses),
            ports=settings.ports,
        )
        self.membership = Membership(me, settings.seeds, self._memory.saved.peers)
        self.membership.peers.forgotten |= self._memory.saved.forgotten
        self._discovery: Discovery | None = None
        if settings.listen:
            self._open_door()
            if settings.discovery:
                place = Place(settings.listen, settings.port)
                self._discovery = Discovery(place, self._advert, log)
            if settings.look is not None:
                reactor.every(settings.timing.look_s, self._look)
        reactor.every(settings.timing.tick_s, self._tick)
        self._tick()

    def ways(self) -> dict[NodeId, tuple[str, ...]]:
        """Return the addresses of each linked peer, the address in use first, and of this node
        itself."""
        membership, settings = self.membership, self._settings
        in_use = {line.node: line.address for line in membership.lines.values() if line.node}
        ways = {
            peer.node: tuple(dict.fromkeys([in_use[peer.node], *peer.addresses]))
            for peer in membership.peers.values()
            if peer.status == "linked" and peer.node in in_use
        }
        if self._door is not None:
            host = "127.0.0.1" if settings.listen in WILDCARDS else settings.listen
            ways[self._speaker.node] = (f"{host}:{settings.port}",)
        return ways

    def count_published(self, plane: Plane, count: int) -> None:
        """Count bytes published on a plane. Each linked peer counts, because each one gets them."""
        for peer in self.membership.peers.values():
            way = self._traffic.way(peer.node, plane) if peer.status == "linked" else None
            if way is not None:
                way.add_sent(count)

    def leave_out(self, forgotten: Collection[NodeId]) -> None:
        """Reject these forgotten nodes, now and after restarts. A node that is not in the list may
        join again."""
        if forgotten == self._left_out:
            return
        self._left_out = forgotten
        self._do(self.membership.leave_out(forgotten))
        for node in forgotten:
            self._bar(node)
        self._keep()

    def close(self) -> None:
        """Say goodbye to all peers and close all links."""
        if self._discovery is not None:
            self._discovery.close()
        goodbye = PeerGoodbye(node=self._speaker.node, boot=self._speaker.boot)
        for link in self._lines.values():
            link.send(self._letters.write(goodbye))
        if self._lines:
            time.sleep(self._settings.timing.last_words_s)
        self.planes.close()
        for link in [*([] if self._door is None else [self._door]), *self._lines.values()]:
            self._reactor.hang_up(link)

    # --- hints ----------------------------------------------------------------------------

    def _advert(self) -> Advert:
        """Return this node's advert for the local network. Any thread may call this."""
        keys = () if self._keyring is None else self._keyring.cluster_ids
        me = self.membership.me
        return Advert(me.node, me.namespace, keys, me.boot, me.addresses)

    def _dialled_at(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{host}:{self._settings.port}" for host in hosts)

    def _look(self) -> None:
        """Update and log this machine's addresses if they have changed."""
        look, me = self._settings.look, self.membership.me
        addresses = () if look is None else self._dialled_at(look())
        if addresses and addresses != me.addresses:
            self._log.info("the address of this node has changed", addresses=", ".join(addresses))
            self.membership.me = me.model_copy(update={"addresses": addresses})

    def _take_hints(self, now: float) -> None:
        if self._discovery is None:
            return
        for node, advert in self._discovery.take_news():
            if advert is not None and advert.is_kin(self._advert()):
                self.membership.heard_advert(advert, now)
            else:
                self.membership.hints.lose(node)

    # --- the door -------------------------------------------------------------------------

    def _open_door(self) -> None:
        settings = self._settings
        door = Link("router", heartbeat_ms=HEARTBEAT_MS, security=self.door_security)
        try:
            door.bind(f"tcp://{settings.listen}:{settings.port}")
        except PortTaken as error:
            door.close()
            self._log.error("cannot listen for other nodes; trying again", why=str(error))
            self._reactor.later(settings.timing.bind_retry_s, self._open_door)
            return
        self._door = door
        door.tally = self._traffic.by_identity("peers")
        self._reactor.watch(door, self._knocked)

    def _knocked(self, frames: list[bytes]) -> None:
        if len(frames) != 2 or self._door is None:
            return
        message = self._read(frames[1], "a knock")
        if isinstance(message, PeerHello):
            answer, actions = self.membership.heard_hello(message, self._reactor.now())
            if isinstance(answer, PeerWelcome):
                answer = answer.model_copy(update={"wall_s": wall()})
                if message.node != self._speaker.node:
                    self._introduce(message.node)
            elif answer.reason == "protocol":
                self._bar(message.node)
            self._door.send(frames[0], self._letters.write(answer))
            self._do(actions)
            self._tick()
        elif isinstance(message, PeerGoodbye):
            self._do(self.membership.heard_goodbye(message, self._reactor.now()))
        elif (
            isinstance(message, LinkEcho) and message.answer and self.membership.knows(message.node)
        ):
            echoed = LinkEchoed(node=self._speaker.node, serial=message.serial)
            self._door.send(frames[0], self._letters.write(echoed))

    # --- lines ----------------------------------------------------------------------------

    def _answered(self, address: str, frames: list[bytes]) -> None:
        message = self._read(frames[-1], address)
        now = self._reactor.now()
        if isinstance(message, PeerWelcome):
            if (line := self._lines.get(address)) is not None:
                line.tally = self._traffic.way(message.node, "peers")
            self._do(self.membership.heard_welcome(address, message, now, wall()))
            self._tick()
        elif isinstance(message, PeerRefused):
            self._do(self.membership.heard_refused(address, message, now))

    def _tick(self) -> None:
        now = self._reactor.now()
        self._take_hints(now)
        self._do(self.membership.tick(now))
        facts = tuple(
            (peer.node, peer.status, peer.host, peer.candidate_port, peer.name)
            for peer in self.membership.peers.readings(now)
        )
        timing = self._settings.timing
        is_alone = not facts and not self.membership.strangers(now)
        wait_s = timing.alone_reading_s if is_alone else timing.reading_s
        if facts != self._published_facts or now - self._published_at >= wait_s:
            self._published_facts, self._published_at = facts, now
            self._tell(now)
            self._keep()

    def _tell(self, now: float) -> None:
        node = self._speaker.node
        reading = PeersReading(
            node=node,
            peers=self.membership.peers.readings(now),
            strangers=self.membership.strangers(now),
        )
        self._publish(reading_topic("peers", node), self._letters.write(reading))

    def _keep(self) -> None:
        peers = self.membership.peers
        self._memory.keep(Remembered(peers.known_peers(), frozenset(peers.forgotten)))

    # --- actions of membership -------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Dial(address=address):
                    self._dial(address)
                case HangUp(address=address):
                    link = self._lines.pop(address, None)
                    if link is not None:
                        self._reactor.hang_up(link)
                case SayHello(address=address, hello=hello):
                    if address in self._lines:
                        self._lines[address].send(self._letters.write(hello))
                case Follow(node=node, host=host, ports=ports):
                    self._introduce(node)
                    self.planes.follow(node, host, ports)
                case Unfollow(node=node):
                    self.planes.unfollow(node)
                case Say(message=message, node=node, address=address):
                    self._log.info(message, peer=node, address=address)
                case _:
                    assert_never(action)

    def _dial(self, address: str) -> None:
        link = Link(
            "dealer",
            identity=f"{self._speaker.node}/{self._speaker.boot}",
            heartbeat_ms=HEARTBEAT_MS,
            security=self.door_security,
        )
        if self._dialler.connect(link, f"tcp://{address}"):
            self._lines[address] = link
            self._reactor.watch(link, lambda frames: self._answered(address, frames))

    def _introduce(self, node: NodeId) -> None:
        """Admit a node by its id. The node has the cluster's key, because its message could not
        have arrived otherwise."""
        if self._keyring is None:
            return
        try:
            self._keyring.introduce([node])
        except (BadKey, OSError) as error:
            self._log.error("cannot admit a node", peer=node, why=str(error))

    def _bar(self, node: NodeId) -> None:
        """Stop admitting a node by its id, until it is introduced again."""
        if self._keyring is not None and node in self._keyring.known_nodes:
            self._keyring.forget(node)

    def _read(self, payload: bytes, where: str) -> Message | None:
        try:
            return decode(payload).message
        except BadMessage as error:
            self._dropped.add(where=where, error=str(error)[:200])
            return None
