"""Talks to the bus: the shell around decisions and planner, on top of the candidate's office.

Order promised: an event is journalled, then applied, then published, then answered for, once it
is as safe as it can be. Facts and commands are answered by the holder alone; anybody else says
`NotHolder`, or why nothing can be changed. What follows from an event (another generation, a
removal) is indexed right behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from bus.client import BusClient
from bus.links.reactor import Reactor
from bus.links.transport import Link
from bus.process.clock import wall
from bus.process.identity import new_name
from bus.process.logs import Log
from bus.replica.state import ClusterState
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import BadMessage, PortTaken, Refusal
from bus.wire.ids import CommandId, InstanceId, NodeId
from bus.wire.messages.commands import Acknowledged, Command, CommandRefused
from bus.wire.messages.control import (
    AppendAck,
    AskCommand,
    AskEvents,
    AskSnapshot,
    AskVote,
    Candidacy,
    FactTaken,
    NotHolder,
    TellFact,
    TermHeartbeat,
    Vote,
)
from bus.wire.messages.events import (
    Event,
    EventBody,
    InstanceRemoved,
    LoadRefused,
    RunnerEnded,
    RunnerUnloaded,
    TermOpened,
)
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.wire import Message
from bus.wire.topics import reading_topic
from master.consensus.candidate_links import OpenLink, candidates_in
from master.consensus.shell import CandidateSettings, CandidateShell
from master.decisions.collective_tests import see_off
from master.decisions.crash_loop import Breaker
from master.decisions.decide import Decided, Decision, Known, Later, Policy, Scene, decide
from master.decisions.evict import SETTLE_S
from master.decisions.observations import View
from master.decisions.planner import Memory, follow_up, idle, remember, repairs, wishes
from master.decisions.prune import SETTLE_GRACE_S, Watch, bereft, silent
from master.log.sequencer import fact_event, judge, next_event

PLAN_S = 0.5
BIND_RETRY_S = 5.0
HEARD = (
    "card",
    "reading.node",
    "reading.runner",
    "reading.demand",
    "reading.link",
    "reading.collective",
)


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """What the composition root read. `settle_grace_s`: how long the nodes of an instance may
    be silent, for a holder, before it is removed. `listen`: where the ROUTER binds for other
    nodes."""

    candidate: CandidateSettings
    policy: Policy = field(default_factory=Policy)
    settle_grace_s: float = SETTLE_GRACE_S
    listen: tuple[str, ...] = ()


class Master:
    """One candidate. On a node of its own it takes the term as soon as it can be heard."""

    def __init__(
        self,
        client: BusClient,
        reactor: Reactor,
        log: Log,
        settings: MasterSettings,
        *,
        open_link: OpenLink | None = None,
    ) -> None:
        self.client = client
        self._reactor = reactor
        self._log = log
        self._settings = settings
        self._view = View()
        self._breaker = Breaker()
        self._memory = Memory()
        self._watch = Watch(settings.settle_grace_s)
        self._settled_at = 0.0
        self._said: dict[str, str] = {}
        self.office = CandidateShell(
            client, reactor, log, settings.candidate, self, open_link=open_link
        )
        self._link = Link("router", security=client.security)
        self._link.bind(client.endpoints.candidate)
        for address in settings.listen:
            self._listen(address)
        reactor.watch(self._link, self._asked)
        for prefix in HEARD:
            client.hear(prefix, self._heard)
        client.hear(reading_topic("peers", client.speaker.node), self._heard_peers)
        reactor.every(PLAN_S, self._plan)
        self.office.begin()

    @property
    def state(self) -> ClusterState:
        """The state at the end of this candidate's log."""
        return self.office.state

    @property
    def holding(self) -> bool:
        """Whether this candidate holds the term."""
        return self.office.candidate.holding

    def know_peers(self, addresses: Mapping[NodeId, tuple[str, ...]]) -> None:
        """The other candidates and where their ROUTERs are, best first: to be called by what
        keeps the membership, at first and whenever it changes."""
        self.office.know(addresses)

    def close(self) -> None:
        """Stop; what was journalled is on the disk."""
        self._reactor.unwatch(self._link)
        self._link.close()
        self.office.close()
        self.client.close()

    def _listen(self, address: str) -> None:
        try:
            self._link.bind(address)
        except PortTaken as error:
            self._log.error("other nodes cannot ask here; tries again", why=str(error))
            self._reactor.later(BIND_RETRY_S, lambda: self._listen(address))

    def _heard_peers(self, _topic: str, envelope: Envelope) -> None:
        """Our own switchboard's word on who is there and where."""
        reading = envelope.message
        if isinstance(reading, PeersReading) and reading.node == self.client.speaker.node:
            self.know_peers(candidates_in(reading))

    # --- the term ---

    def opened(self, counter: int) -> None:
        """The term is ours: whoever runs goes on running; only what was left half done is
        taken up."""
        self._breaker, self._memory = Breaker(), Memory()
        self._watch.begin(self._reactor.now())
        me = self.client.speaker.node
        self._index(TermOpened(holder=me, counter=counter))
        for body in repairs(self.state):
            self._index(body)

    def answered(self, asker: bytes, answer: Acknowledged) -> None:
        """An answer is as safe as it says."""
        self._link.send(asker, encode(self.client.envelope(answer)))

    # --- the log ---

    def _index(self, body: EventBody, command_id: CommandId | None = None) -> Event:
        event = next_event(
            self.state,
            body,
            term=self.office.candidate.election.counter,
            at_s=wall(),
            command_id=command_id,
            holder=self.client.speaker.node,
        )
        self._append(event)
        return event

    def _append(self, event: Event) -> None:
        before = self.state
        self.office.append(event)
        self._followed(event.body, before)

    def _followed(self, body: EventBody, before: ClusterState) -> None:
        now = self._reactor.now()
        remember(self._memory, body, now)
        if isinstance(body, InstanceRemoved):
            self._settled_at = now + SETTLE_S
            self._breaker.forget(body.instance)
        if isinstance(body, RunnerEnded | LoadRefused | RunnerUnloaded):
            known = before.instances.get(body.instance)
            for more in follow_up(known, body, self._breaker, now):
                self._log.info(
                    "follows from a rank's leaving",
                    what=more.kind,
                    instance=body.instance,
                    generation=body.generation,
                )
                self._index(more)

    # --- questions ---

    def _asked(self, frames: list[bytes]) -> None:
        if len(frames) != 2:
            return
        asker, payload = frames
        try:
            question = decode(payload).message
        except BadMessage as error:
            self._log.warning("dropped a question", error=str(error)[:200])
            return
        self.office.awake()
        answer = self._answer(question, asker)
        if answer is not None:
            self._link.send(asker, encode(self.client.envelope(answer)))

    def _answer(self, question: Message, asker: bytes) -> Message | None:
        match question:
            case TermHeartbeat() | Candidacy() | AskVote() | Vote() | AppendAck():
                self.office.heard(question)
                return None
            case AskSnapshot() | AskEvents():
                return self.office.candidate.found(question)
            case TellFact() if self.holding:
                return self._take(question)
            case AskCommand(command=command) if self.holding:
                return self._command(command, asker)
            case AskCommand(command=command):
                why = self.office.candidate.minority(self._reactor.now())
                if why is not None:
                    return CommandRefused(command_id=command.command_id, refusal=why)
                return NotHolder(holder=self.office.candidate.election.holder)
            case TellFact():
                return NotHolder(holder=self.office.candidate.election.holder)
            case _:
                self._log.warning("unexpected question", kind=type(question).__name__)
                return None

    def _take(self, told: TellFact) -> FactTaken | None:
        verdict = judge(self.state, told)
        if verdict == "early":
            return None
        if verdict == "next":
            me, counter = self.client.speaker.node, self.office.candidate.election.counter
            self._append(fact_event(self.state, told, term=counter, at_s=wall(), holder=me))
        return FactTaken(fact_id=told.fact_id)

    def _command(self, command: Command, asker: bytes) -> CommandRefused | None:
        fresh = InstanceId(new_name("inst"))
        decision = decide(command, self._scene(), fresh)
        self._log.info(
            "decided",
            command=command.kind,
            command_id=command.command_id,
            decision=type(decision).__name__.lower(),
        )
        match decision:
            case Decided() if (why := self._unsettled(command)) is not None:
                return CommandRefused(command_id=command.command_id, refusal=why)
            case Decided(events=bodies, instance=instance):
                index = self._carry_out(bodies, command.command_id)
                self._acknowledge(asker, Known(index, instance), command.command_id)
            case Known():
                self._acknowledge(asker, decision, command.command_id)
            case Later(events=bodies):
                for body in bodies:
                    self._index(body)
            case Refusal():
                return CommandRefused(command_id=command.command_id, refusal=decision)
            case _:
                assert_never(decision)
        return None

    def _unsettled(self, command: Command) -> Refusal | None:
        return self.office.candidate.unsettled(command, self._reactor.now())

    def _carry_out(self, bodies: tuple[EventBody, ...], command_id: CommandId) -> int:
        """Index what was decided; the command's place is that of the last body."""
        for body in bodies[:-1]:
            self._index(body)
        return self._index(bodies[-1], command_id).index

    def _acknowledge(self, asker: bytes, known: Known, command_id: CommandId) -> None:
        """Answer when the place is safe; `durability` is set to what it is worth then."""
        answer = Acknowledged(
            command_id=command_id,
            term=self.office.candidate.election.counter,
            index=known.index,
            durability="volatile",
            instance=known.instance,
            plan=known.plan,
        )
        self.office.answer(asker, answer)

    # --- readings and plans ---

    def _heard(self, _topic: str, envelope: Envelope) -> None:
        if self._view.hear(envelope.message, self._reactor.now()):
            self._plan()

    def _scene(self) -> Scene:
        return Scene(
            state=self.state,
            view=self._view,
            policy=self._settings.policy,
            settled_at=self._settled_at,
            now=self._reactor.now(),
        )

    def _plan(self) -> None:
        if not self.holding:
            return
        scene = self._scene()
        over = see_off(scene.state, scene.view, self._memory.failed_at, scene.now)
        for body in (*silent(scene, self._watch), *idle(scene, self._memory), *over):
            self._log.info("unloads", what=body.kind, why=getattr(body, "why", ""))
            self._index(body)
        scene = self._scene()
        for wish in (*bereft(scene, self._watch), *wishes(scene, self._memory)):
            decision = decide(wish, self._scene(), InstanceId(new_name("inst")))
            self._wished(wish.model, decision)

    def _wished(self, model: str, decision: Decision) -> None:
        said = ""
        match decision:
            case Decided(events=bodies) | Later(events=bodies):
                for body in bodies:
                    self._index(body)
                said = "waits for room" if isinstance(decision, Later) else "is placed"
            case Refusal(message=message):
                said = message
            case Known():
                return
            case _:
                assert_never(decision)
        if self._said.get(model) != said:
            self._said[model] = said
            self._log.info("wished for", model=model, outcome=said)
