"""Passes cards on: nodes that cannot dial each other learn each other's cards through other nodes.

Pure: time arrives as `now`. A card goes one hop at a time. A node passes a card on only for a peer
that follows it and does not follow the card's node. So nothing is passed on where every node is
linked with every other one. If several nodes could pass it on, nodes that are linked with the
card's node come first, then the smallest id. (OLSR chooses relays like this.) A node numbers its
cards, so that a copy is recognised.

Promises: a copy of a card is taken and passed on at most once by each node for each set of peers
that lack it, so nothing circulates. The cards of a node are passed on at most every `RELAY_S`. This
node's own card, and the card of a node that it follows, come only from that node itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from bus.membership.card_book import CardBook, is_withdrawn
from bus.wire.cards import as_received
from bus.wire.codec import Envelope
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import CardReading

RELAY_S = 1.0
SETTLE_S = 3.0
"""A peer must lack a link for this long before cards are passed on for it: a node that joins makes
its links within two seconds."""
LINKS_S = 5.0
"""A node's list of its peers is ignored if it is older than this; it is sent every second."""
MAX_CARDS = 1_000
LATE_S = 20.0
"""A card is assumed to arrive within this time after it was sent, even if other nodes pass it
on."""
DOUBLE_S = 120.0
"""How long two nodes with the same id are reported after the last card that showed it."""

Verdict = Literal["taken", "old", "own", "refused"]
"""The verdict on a card that arrives. `old`: it is not newer, or another node passed it on although
this node gets it directly. `own`: another node sends a card of this node's id. `refused`: its
sender may not send it."""


@dataclass(slots=True)
class _Copy:
    """A node's latest card as it arrived from `source`. `sent_to`: the peers for which it has been
    passed on."""

    payload: bytes
    source: NodeId
    sent_to: set[NodeId] = field(default_factory=set[NodeId])


@dataclass(slots=True)
class _Peers:
    """A node's report of its peers: the nodes that it follows, and the nodes that left."""

    linked: frozenset[NodeId]
    left: frozenset[NodeId]
    at: float


@dataclass(slots=True)
class _Speaker:
    """A process that announces a node's card: when its first and its latest card arrived here."""

    first_at: float
    last_at: float
    last_seq: int


class CardExchange:
    """The cards that a switchboard has received, and which of them it passes on. `forgotten`: the
    nodes that were removed from the cluster."""

    def __init__(self, own: NodeId) -> None:
        self.own = own
        self.book = CardBook(own)
        self.forgotten: Collection[NodeId] = ()
        self._copies: dict[NodeId, _Copy] = {}
        self._taken: dict[tuple[NodeId, Boot], tuple[int, float]] = {}
        """For each process that announces a card: the highest number of its cards that were taken,
        and when. An older copy may arrive late, with a time stamp in the future, and then look
        newer than later cards; its lower number shows that it is old."""
        self._peers: dict[NodeId, _Peers] = {}
        self._lacking_at: dict[tuple[NodeId, NodeId], float] = {}
        self._sent_at: dict[NodeId, float] = {}
        self._speakers: dict[NodeId, dict[Boot, _Speaker]] = {}
        self._doubled_at: dict[NodeId, float] = {}

    def take(
        self, envelope: Envelope, payload: bytes, source: NodeId, now: float, wall_s: float
    ) -> Verdict:
        """Check a card that arrived from `source` (this node or a peer), and store it if it is
        taken."""
        message = envelope.message
        if not isinstance(message, CardReading) or message.card.node != envelope.node:
            return "refused"
        node = envelope.node
        if node in self.forgotten or (source == self.own and node != self.own):
            return "refused"
        self._note_speaker(envelope, now)
        if source != self.own and node == self.own:
            return "own"
        if source != node and node in self._linked(self.own, now):
            return "old"
        if self._taken.get((node, envelope.boot), (-1, now))[0] >= envelope.seq:
            return "old"
        if node not in self._copies and len(self._copies) >= MAX_CARDS:
            return "refused"
        if not self.book.take(as_received(message.card, wall_s), now):
            return "old"
        self._copies[node] = _Copy(payload, source)
        self._note_taken(envelope, now)
        for gone in self._copies.keys() - self.book.keys():
            del self._copies[gone]
        return "taken"

    def take_peers(self, reading: PeersReading, now: float) -> None:
        """Store a node's latest list of its peers."""
        self._peers[reading.node] = _Peers(
            frozenset(peer.node for peer in reading.peers if peer.status == "linked"),
            frozenset(peer.node for peer in reading.peers if peer.status == "left"),
            now,
        )

    def leave_out(self, forgotten: Collection[NodeId]) -> None:
        """Refuse the cards of these nodes from now on, and pass none of them on."""
        self.forgotten = forgotten
        for node in forgotten:
            self._copies.pop(node, None)

    def due(self, now: float) -> list[tuple[NodeId, bytes]]:
        """Return the cards to pass on now, each with its node. Call this every `RELAY_S`."""
        wanted = self._lacking_cards(now)
        due: list[tuple[NodeId, bytes]] = []
        for node, readers in wanted.items():
            if now - self._sent_at.get(node, float("-inf")) >= RELAY_S:
                copy = self._copies[node]
                copy.sent_to |= readers
                self._sent_at[node] = now
                due.append((node, copy.payload))
        return sorted(due)

    def doubles(self, now: float) -> frozenset[NodeId]:
        """Return the ids that two running nodes use."""
        return frozenset(n for n, at in self._doubled_at.items() if now - at <= DOUBLE_S)

    def _lacking_cards(self, now: float) -> dict[NodeId, set[NodeId]]:
        """Return the cards that this node should pass on, each with the peers that lack it."""
        wanted: dict[NodeId, set[NodeId]] = {}
        lacking: dict[tuple[NodeId, NodeId], float] = {}
        cards = {n for n, held in self.book.items() if held.counts(now) and n in self._copies}
        for reader in self._linked(self.own, now):
            peers = self._peers.get(reader)
            if peers is None or now - peers.at > LINKS_S or self.own not in peers.linked:
                continue
            for node in cards - peers.linked - peers.left - {reader, self.own}:
                since = lacking[reader, node] = self._lacking_at.get((reader, node), now)
                if now - since >= SETTLE_S and self._is_relay(reader, node, now):
                    wanted.setdefault(node, set()).add(reader)
        self._lacking_at = lacking
        return wanted

    def _is_relay(self, reader: NodeId, node: NodeId, now: float) -> bool:
        """Return whether it is this node's task to pass the card of `node` on to the peer `reader`,
        by the rules in the module's docstring."""
        copy = self._copies[node]
        if reader in copy.sent_to or reader == copy.source:
            return False
        is_linked = node in self._linked(self.own, now)
        if not is_linked and copy.source == node and not is_withdrawn(self.book[node].card):
            return False
        others = self._linked(reader, now) & self._linked(self.own, now) - {reader, node}
        better = (n for n in others if {node, reader} <= self._linked(n, now))
        return not any(not is_linked or n < self.own for n in better)

    def _linked(self, node: NodeId, now: float) -> frozenset[NodeId]:
        """Return the nodes that a node follows, by its latest list."""
        peers = self._peers.get(node)
        return frozenset() if peers is None or now - peers.at > LINKS_S else peers.linked

    def _note_taken(self, envelope: Envelope, now: float) -> None:
        self._taken[envelope.node, envelope.boot] = (envelope.seq, now)
        if len(self._taken) > 2 * MAX_CARDS:
            fresh = {k: value for k, value in self._taken.items() if now - value[1] <= DOUBLE_S}
            self._taken = fresh

    def _note_speaker(self, envelope: Envelope, now: float) -> None:
        """Record which process announces a node. If a process sends a new card more than `LATE_S`
        after a younger process of the same id appeared, two running nodes have that id."""
        if isinstance(envelope.message, CardReading) and is_withdrawn(envelope.message.card):
            return
        node = envelope.node
        if node not in self._speakers and len(self._speakers) >= MAX_CARDS:
            self._speakers.clear()
        speakers = self._speakers.setdefault(node, {})
        for boot in [b for b, other in speakers.items() if now - other.last_at > DOUBLE_S]:
            del speakers[boot]
        speaker = speakers.setdefault(envelope.boot, _Speaker(now, now, envelope.seq))
        if envelope.seq <= speaker.last_seq:
            return
        speaker.last_seq, speaker.last_at = envelope.seq, now
        if any(speaker.first_at < s.first_at < now - LATE_S for s in speakers.values()):
            self._doubled_at[node] = now
