"""Talks to peers: passes on the cards of nodes that cannot dial each other, and withdraws this
node's card when the node shuts down.

`bus.membership.card_exchange` decides which cards count and which are passed on.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.client import Letters, Speaker
from bus.membership.card_book import withdrawal
from bus.membership.card_exchange import CardExchange
from bus.membership.peer_table import PeerTable, same_id_words
from bus.process.clock import now, wall
from bus.process.logs import CountedWarning, Log
from bus.wire.codec import Envelope
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import CardReading
from bus.wire.topics import RELAYED


class CardRelay:
    """The cards of one switchboard. `send(topic, payload)` sends to all peers."""

    def __init__(
        self, speaker: Speaker, peers: PeerTable, send: Callable[[str, bytes], None], log: Log
    ) -> None:
        self.exchange = CardExchange(speaker.node)
        self._letters = Letters(speaker)
        self._peers = peers
        self._send = send
        self._log = log
        self._refused = CountedWarning(log, "dropped a card that its sender may not send")

    def accepts(self, envelope: Envelope, payload: bytes, peer: NodeId | None) -> bool:
        """Return whether to keep a retained value. A node card must pass the rules of the exchange;
        any other value is kept. `peer`: the sender, None for a service of this node."""
        exchange = self.exchange
        if isinstance(envelope.message, PeersReading):
            exchange.take_peers(envelope.message, now())
        if not isinstance(envelope.message, CardReading):
            return True
        source = exchange.own if peer is None else peer
        verdict = exchange.take(envelope, payload, source, now(), wall())
        if verdict == "refused":
            self._refused.add(of=envelope.node, sender=source)
        return verdict == "taken"

    def pass_on(self) -> None:
        """Pass cards on to peers that lack them, and report ids that two nodes use."""
        for node, payload in self.exchange.due(now()):
            self._send(f"{RELAYED}.{node}", payload)
        doubles = self.exchange.doubles(now())
        for node in doubles - self._peers.doubles:
            self._log.error(same_id_words(node))
        self._peers.doubles = doubles

    def say_goodbye(self) -> bool:
        """Withdraw this node's card at all nodes that have it, because the node shuts down. Return
        whether the node had published a card."""
        held = self.exchange.book.get(self.exchange.own)
        if held is None:
            return False
        card = withdrawal(held.card, wall())
        self._send(f"card.{card.node}", self._letters.write(CardReading(card=card)))
        return True
