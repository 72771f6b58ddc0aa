"""Talks to the switchboard and the leader for a service: publishes and subscribes, sends commands,
and reports facts.

A process has one `BusClient`. With `follow` it mirrors the cluster's state. A fact (an event that
this service witnessed) waits in the outbox and is sent again until the leader has written it to the
log. The client publishes its retained values again when the switchboard restarts. It repeats a
command until the command is answered or its deadline passes. Callbacks run in the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bus.links.reactor import OnFrames, Reactor
from bus.links.security import Security
from bus.links.traffic import Traffic
from bus.links.transport import Link
from bus.process.clock import wall
from bus.process.endpoints import Endpoints
from bus.process.logs import CountedWarning, Log
from bus.replica.mirror import Ask, Mirror
from bus.replica.outbox import Outbox
from bus.replica.state import ClusterState
from bus.wire.cards import as_received
from bus.wire.codec import Envelope, Speaker, decode, encode
from bus.wire.errors import BadMessage, Refusal
from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.commands import Acknowledged, Command, CommandRefused
from bus.wire.messages.control import (
    AskCommand,
    EventsFound,
    FactTaken,
    NotHolder,
    Snapshot,
    TermHeartbeat,
)
from bus.wire.messages.events import Event, Fact
from bus.wire.messages.readings import CardReading
from bus.wire.messages.wire import Message
from bus.wire.topics import event_topic, rule_for

OnEnvelope = Callable[[str, Envelope], None]
OnAnswer = Callable[[Acknowledged | CommandRefused], None]
COMMAND_REPEAT_S = 1.0
UPKEEP_S = 0.5
UNANSWERED_S = 1.5
"""After this long without an answer, the client uses the leader's next address."""


class Letters:
    """Packs the messages of a process into envelopes, which are numbered in the order of
    packing."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._seq = 0

    def write(self, message: Message) -> bytes:
        """Return the message as bytes, in an envelope with the next number."""
        self._seq += 1
        by = self._speaker
        return encode(Envelope(by.node, by.process, by.boot, self._seq, message))


@dataclass(slots=True)
class _OpenCommand:
    command: Command
    on_answer: OnAnswer
    deadline_at: float
    asked_at: float


class HolderLink:
    """The link to the leader. It uses one of the leader's addresses at a time; if there is no
    answer, it uses the next address."""

    def __init__(
        self,
        speaker: Speaker,
        letters: Letters,
        reactor: Reactor,
        security: Security | None,
        traffic: Traffic,
        on_frames: OnFrames,
    ) -> None:
        self._traffic = traffic
        self._identity = f"{speaker.node}/{speaker.process}/{speaker.boot}"
        self._letters = letters
        self._reactor = reactor
        self._security = security
        self._on_frames = on_frames
        self._node: NodeId | None = None
        self._addresses: tuple[str, ...] = ()
        self._tried = 0
        self._asked_at: float | None = None
        self._link: Link | None = None

    def follow(self, node: NodeId, addresses: tuple[str, ...]) -> bool:
        """Connect to the leader's addresses, best first. False if this link already uses them."""
        if not addresses or addresses == self._addresses:
            return False
        self._node, self._addresses, self._tried = node, addresses, 0
        self._dial()
        return True

    @property
    def is_open(self) -> bool:
        """Return whether a leader is known."""
        return self._link is not None

    def ask(self, question: Message) -> None:
        """Send a question to the leader, if the link is open. Raises the errors of `encode`."""
        letter = self._letters.write(question)
        if self._link is None:
            return
        self._link.send(letter)
        if self._asked_at is None:
            self._asked_at = self._reactor.now()

    def try_next(self, now: float) -> bool:
        """Connect to the leader's next address if a question has been unanswered for
        `UNANSWERED_S`. Return whether the link did so."""
        waited = self._asked_at is not None and now - self._asked_at > UNANSWERED_S
        if not waited or len(self._addresses) < 2:
            return False
        self._tried += 1
        self._dial()
        return True

    def close(self) -> None:
        if self._link is not None:
            self._reactor.hang_up(self._link)

    def _dial(self) -> None:
        self.close()
        self._link = Link("dealer", identity=self._identity, security=self._security)
        self._link.tally = None if self._node is None else self._traffic.way(self._node, "holder")
        address = self._addresses[self._tried % len(self._addresses)]
        self._link.connect(address, peer=self._node)
        self._asked_at = None
        self._reactor.watch(self._link, self._answered)

    def _answered(self, frames: list[bytes]) -> None:
        self._asked_at = None
        self._on_frames(frames)


class BusClient:
    """A service's connection to its node's switchboard and to the leader."""

    def __init__(
        self,
        speaker: Speaker,
        endpoints: Endpoints,
        reactor: Reactor,
        log: Log,
        *,
        follow: bool = True,
        security: Security | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.security = security
        self.traffic = traffic or Traffic(speaker.node)
        self.speaker = speaker
        self.endpoints = endpoints
        self.reactor = reactor
        self.log = log
        self.mirror = Mirror()
        self._passed_on = self.mirror.state
        self.outbox = Outbox(speaker.node, speaker.process, speaker.boot)
        self.on_state: list[Callable[[ClusterState], None]] = []
        self.wanted: set[str] = set()
        self._follow = follow
        self._letters = Letters(speaker)
        self._holder = HolderLink(
            speaker, self._letters, reactor, security, self.traffic, self._answered
        )
        self._hearers: list[tuple[str, OnEnvelope]] = []
        self._ignored: set[bytes] = set()
        self._dropped = CountedWarning(log, "dropped a message that cannot be decoded")
        self._retained: dict[str, Message] = {}
        self._commands: dict[CommandId, _OpenCommand] = {}
        self._outs = {plane: Link("xpub") for plane in ("control", "telemetry")}
        self._ins = {plane: Link("sub") for plane in ("control", "telemetry")}
        for plane, link in self._outs.items():
            link.connect(endpoints.plane_in(plane))
            reactor.watch(link, self._subscribed)
        for plane, link in self._ins.items():
            link.connect(endpoints.plane_out(plane))
            reactor.watch(link, self._receive)
        if follow:
            self._ins["control"].subscribe("event.")
            self._ins["control"].subscribe("term")
        reactor.every(UPKEEP_S, self._upkeep)

    # --- publishing and hearing ----------

    def publish(self, topic: str, message: Message) -> None:
        """Publish as the table of topics says. Retained values are stored here and sent again when
        the switchboard restarts. Never blocks; may drop a message."""
        rule = rule_for(topic)
        if rule is None or not isinstance(message, rule.message):
            raise ValueError(f"{type(message).__name__} may not be published on {topic!r}")
        if rule.retained:
            self._retained[topic] = message
        if rule.on_demand and rule.prefix not in self.wanted:
            return
        self._outs[rule.plane].send(topic.encode(), self._letters.write(message))

    def write(self, message: Message) -> bytes:
        """Return the message as bytes, in this process's next envelope. The caller sends it over
        another link than the bus."""
        return self._letters.write(message)

    def hear(self, prefix: str, on_envelope: OnEnvelope) -> None:
        """Call `on_envelope` with the topic and the envelope of each message whose topic begins
        with `prefix`."""
        rule = rule_for(prefix.rstrip(".")) or rule_for(prefix)
        planes = ("control", "telemetry") if rule is None else (rule.plane,)
        self._hearers.append((prefix, on_envelope))
        for plane in planes:
            self._ins[plane].subscribe(prefix)

    def ignore(self, topic: str) -> None:
        """Drop messages of exactly this topic unread. For a process that hears a prefix, but does
        not need its own messages."""
        self._ignored.add(topic.encode())

    # --- the leader ----------

    @property
    def state(self) -> ClusterState:
        """Return the mirrored state; empty until the first snapshot."""
        return self.mirror.state

    def tell(self, fact: Fact) -> None:
        """Send a fact (an event that this service witnessed) until a leader has written it to the
        log."""
        self.outbox.add(fact)
        self._tell_due()

    def command(self, command: Command, on_answer: OnAnswer, *, deadline_s: float = 15.0) -> None:
        """Send a command to the leader. `on_answer` is called exactly once. If no leader answers
        within `deadline_s`, it gets a refusal with reason `pending`."""
        now = self.reactor.now()
        # Send first, store second: a command that can't be packed fails here and is not repeated.
        self._holder.ask(AskCommand(command=command))
        self._commands[command.command_id] = _OpenCommand(command, on_answer, now + deadline_s, now)

    def take_back(self, command_id: CommandId) -> None:
        """Stop repeating a command. This does not revoke a decision that the leader has already
        made."""
        self._commands.pop(command_id, None)

    def close(self) -> None:
        """Close all links."""
        self._holder.close()
        for link in [*self._outs.values(), *self._ins.values()]:
            self.reactor.hang_up(link)

    # --- what arrives ----------

    def _subscribed(self, frames: list[bytes]) -> None:
        """Process a subscription that the switchboard passes on. For an on-demand topic, store
        whether any client wants it. A subscription to any other topic means that the switchboard
        has restarted, so all retained values are published again."""
        wants, prefix = frames[0][:1] == b"\x01", frames[0][1:].decode(errors="replace")
        rule = rule_for(prefix)
        if rule is not None and rule.on_demand:
            (self.wanted.add if wants else self.wanted.discard)(rule.prefix)
            return
        if not wants:
            return
        for topic, message in list(self._retained.items()):
            if isinstance(message, CardReading):
                # a switchboard that stopped has withdrawn the card
                card = message.card.model_copy(update={"announced_at_s": wall()})
                message = CardReading(card=card)
            self.publish(topic, message)

    def _receive(self, frames: list[bytes]) -> None:
        if len(frames) == 2:
            self._receive_message(frames[0], frames[1])
        elif len(frames) % 2:
            # The retained values that match a new subscription come as one bundle.
            for topic, payload in zip(frames[1::2], frames[2::2], strict=True):
                self._receive_message(topic, payload)

    def _receive_message(self, raw_topic: bytes, payload: bytes) -> None:
        if raw_topic in self._ignored:
            return
        topic = raw_topic.decode(errors="replace")
        try:
            envelope = decode(payload)
        except BadMessage as error:
            self._dropped.add(topic=topic[:80], error=str(error)[:200])
            return
        if isinstance(envelope.message, CardReading):
            card = as_received(envelope.message.card, wall())
            envelope = replace(envelope, message=CardReading(card=card))
        if self._follow and isinstance(envelope.message, Event):
            self._mirrored(self.mirror.heard_event(envelope.message, self.reactor.now()))
        elif self._follow and isinstance(envelope.message, TermHeartbeat):
            self._heartbeat(envelope.message)
        for prefix, on_envelope in self._hearers:
            if topic.startswith(prefix):
                on_envelope(topic, envelope)

    def _heartbeat(self, beat: TermHeartbeat) -> None:
        before = (self.mirror.holder, self.mirror.counter)
        ask = self.mirror.heard_heartbeat(beat, self.reactor.now())
        holder, term = self.mirror.holder, self.mirror.counter
        if (holder, term) != before:
            self.log.info("following the leader", holder=holder, term=term)
        if beat.holder == self.mirror.holder:
            local = beat.holder == self.speaker.node
            addresses = (self.endpoints.candidate,) if local else beat.addresses
            if self._holder.follow(beat.holder, addresses):
                self.outbox.sent_at.clear()
        self._mirrored(ask)

    def _answered(self, frames: list[bytes]) -> None:
        try:
            message = decode(frames[-1]).message
        except BadMessage as error:
            self._dropped.add(topic="answer of the leader", error=str(error)[:200])
            return
        match message:
            case Snapshot():
                self._mirrored(self.mirror.heard_snapshot(message, self.reactor.now()))
            case EventsFound():
                self._mirrored(self.mirror.heard_found(message, self.reactor.now()))
            case Acknowledged() | CommandRefused():
                done = self._commands.pop(message.command_id, None)
                if done is not None:
                    done.on_answer(message)
            case FactTaken() | NotHolder():
                pass
            case _:
                self.log.warning("unexpected answer", kind=type(message).__name__)

    def _mirrored(self, ask: Ask | None) -> None:
        """Send the mirror's question to the leader, if there is one. Call `on_state` if the state
        has changed."""
        if ask is not None:
            self._holder.ask(ask)
        state = self.mirror.state
        if state is self._passed_on:
            return
        self._passed_on = state
        self.outbox.seen(state)
        for callback in self.on_state:
            callback(state)

    # --- what is due ----------

    def _tell_due(self) -> None:
        if self._holder.is_open:
            for fact in self.outbox.due(self.reactor.now()):
                self._holder.ask(fact)

    def _upkeep(self) -> None:
        now = self.reactor.now()
        if self._holder.try_next(now):
            self.outbox.sent_at.clear()
        self._tell_due()
        if self._follow and (ask := self.mirror.due(now)) is not None:
            self._holder.ask(ask)
        for command_id, waiting in list(self._commands.items()):
            if now >= waiting.deadline_at:
                del self._commands[command_id]
                waiting.on_answer(_no_holder(command_id))
            elif now - waiting.asked_at >= COMMAND_REPEAT_S:
                waiting.asked_at = now
                self._holder.ask(AskCommand(command=waiting.command))


def _no_holder(command_id: CommandId) -> CommandRefused:
    text = "no leader answered in time; check with `shoal status` that `master` is running"
    refusal = Refusal(reason="pending", message=text, retry_after_s=2.0)
    return CommandRefused(command_id=command_id, refusal=refusal)


def topic_of(event: Event) -> str:
    """Return `event.<kind of the event's body>`."""
    return event_topic(event.body.kind)
