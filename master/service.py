"""Talks to the bus and the journal: the shell around election, sequencer, decisions and planner.

Order promised: an event is journalled, then applied, then published, then answered for. Facts
and commands are answered by the holder alone; anybody else says `NotHolder`. What follows from
an event (another generation, a removal) is indexed right behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from bus.client import BusClient, topic_of
from bus.clock import wall
from bus.codec import Envelope, decode, encode
from bus.errors import BadMessage, Refusal
from bus.identity import new_name
from bus.ids import CommandId, InstanceId, NodeId
from bus.journal import Journal
from bus.logs import Log
from bus.loops import Reactor
from bus.messages.commands import Acknowledged, Command, CommandRefused
from bus.messages.control import (
    AskCommand,
    AskEvents,
    AskSnapshot,
    FactTaken,
    NotHolder,
    Snapshot,
    TellFact,
    TermHeartbeat,
)
from bus.messages.events import (
    Event,
    EventBody,
    InstanceRemoved,
    LoadRefused,
    RunnerEnded,
    RunnerUnloaded,
    TermOpened,
)
from bus.messages.wire import Message
from bus.state import ClusterState, apply, digest
from bus.transport import Link
from master.breaker import Breaker
from master.decide import Decided, Decision, Known, Later, Policy, Scene, decide
from master.election import (
    Action,
    Beat,
    Election,
    HeardBeat,
    MyRank,
    OpenTerm,
    PersistTerm,
    Rank,
    StepDown,
    Stimulus,
    SwitchboardUp,
    Tick,
    stimulate,
)
from master.evict import SETTLE_S
from master.history import History
from master.planner import Memory, follow_up, idle, remember, repairs, wishes
from master.sequencer import fact_event, judge, next_event
from master.terms import keep_counter, read_counter
from master.view import View

TICK_S = 0.1
PLAN_S = 0.5
HEARD = ("card", "reading.node", "reading.runner", "reading.demand", "reading.link")


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """What the composition root read. `priority`: the greater is the better candidate."""

    journal: Path
    term_file: Path
    policy: Policy
    priority: int = 0


class Master:
    """One candidate. On a node of its own it takes the term as soon as it can be heard."""

    def __init__(
        self, client: BusClient, reactor: Reactor, log: Log, settings: MasterSettings
    ) -> None:
        self.client = client
        self._reactor = reactor
        self._log = log
        self._settings = settings
        self._journal = Journal(settings.journal, log)
        self.state, events = self._journal.open()
        self._history = History()
        for event in events:
            self.state = apply(self.state, event)
            self._history.keep(event)
        if not events:
            self._history = History(first=self.state.index + 1, last=self.state.index)
        me = client.speaker.node
        counter = max(read_counter(settings.term_file), self.state.term)
        self._election = Election(me=me, rank=self._rank(me), counter=counter)
        self._view = View()
        self._breaker = Breaker()
        self._memory = Memory()
        self._settled_at = 0.0
        self._digest = (-1, 0)
        self._said: dict[str, str] = {}
        self._link = Link("router")
        self._link.bind(client.endpoints.candidate)
        reactor.watch(self._link, self._asked)
        for prefix in HEARD:
            client.hear(prefix, self._heard)
        client.hear("term", self._heard_beat)
        reactor.every(TICK_S, lambda: self._stimulated(Tick()))
        reactor.every(PLAN_S, self._plan)
        self._stimulated(SwitchboardUp())

    @property
    def holding(self) -> bool:
        """Whether this candidate holds the term."""
        return self._election.role == "holding"

    def close(self) -> None:
        """Stop; what was journalled is on the disk."""
        self._reactor.unwatch(self._link)
        self._link.close()
        self.client.close()
        self._journal.close()

    # --- the term ---

    def _heard_beat(self, _topic: str, envelope: Envelope) -> None:
        beat = envelope.message
        if isinstance(beat, TermHeartbeat):
            self._stimulated(HeardBeat(beat.holder, beat.counter))

    def _stimulated(self, stimulus: Stimulus) -> None:
        self._election, actions = stimulate(self._election, stimulus, self._reactor.now())
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case PersistTerm(counter=counter):
                try:
                    keep_counter(self._settings.term_file, counter)
                except OSError as error:
                    self._log.critical("could not keep the term", term=counter, error=str(error))
            case OpenTerm(counter=counter):
                self._log.info("holds the term", term=counter, index=self.state.index)
                self._breaker, self._memory = Breaker(), Memory()
                self._index(TermOpened(holder=self._election.me, counter=counter))
                for body in repairs(self.state):
                    self._index(body)
            case StepDown(why=why):
                self._log.warning("gave up the term", why=why)
            case Beat():
                self._beat()
            case _:
                assert_never(action)

    def _beat(self) -> None:
        if self._digest[0] != self.state.index:
            self._digest = (self.state.index, digest(self.state))
        beat = TermHeartbeat(
            holder=self._election.me,
            counter=self._election.counter,
            index=self.state.index,
            digest=self._digest[1],
            addresses=(self.client.endpoints.candidate,),
        )
        self.client.publish("term", beat)

    def _rank(self, me: NodeId) -> Rank:
        return Rank(self.state.term, self.state.index, self._settings.priority, me)

    # --- the log ---

    def _index(self, body: EventBody, command_id: CommandId | None = None) -> Event:
        event = next_event(
            self.state,
            body,
            term=self._election.counter,
            at_s=wall(),
            command_id=command_id,
        )
        self._append(event)
        return event

    def _append(self, event: Event) -> None:
        after = apply(self.state, event)
        self._journal.append(event, state_after=after)
        before, self.state = self.state, after
        self._history.keep(event)
        self._election, _ = stimulate(
            self._election, MyRank(self._rank(self._election.me)), self._reactor.now()
        )
        self.client.publish(topic_of(event), event)
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
        answer = self._answer(question)
        if answer is not None:
            self._link.send(asker, encode(self.client.envelope(answer)))

    def _answer(self, question: Message) -> Message | None:
        if not self.holding:
            return NotHolder(holder=self._election.holder)
        match question:
            case AskSnapshot():
                return Snapshot(
                    term=self._election.counter,
                    index=self.state.index,
                    state=self.state.model_dump(),
                )
            case AskEvents():
                return self._history.find(question)
            case TellFact():
                return self._take(question)
            case AskCommand(command=command):
                return self._command(command)
            case _:
                self._log.warning("unexpected question", kind=type(question).__name__)
                return None

    def _take(self, told: TellFact) -> FactTaken | None:
        verdict = judge(self.state, told)
        if verdict == "early":
            return None
        if verdict == "next":
            event = fact_event(self.state, told, term=self._election.counter, at_s=wall())
            self._append(event)
        return FactTaken(fact_id=told.fact_id)

    def _command(self, command: Command) -> Acknowledged | CommandRefused | None:
        fresh = InstanceId(new_name("inst"))
        decision = decide(command, self._scene(), fresh)
        self._log.info(
            "decided",
            command=command.kind,
            command_id=command.command_id,
            decision=type(decision).__name__.lower(),
        )
        match decision:
            case Decided(events=bodies, instance=instance):
                index = self._carry_out(bodies, command.command_id)
                return self._acknowledged(command.command_id, index, instance)
            case Known(index=index, instance=instance, plan=plan):
                done = self._acknowledged(command.command_id, index, instance)
                return done.model_copy(update={"plan": plan})
            case Later(events=bodies):
                for body in bodies:
                    self._index(body)
                return None
            case Refusal():
                return CommandRefused(command_id=command.command_id, refusal=decision)
            case _:
                assert_never(decision)

    def _carry_out(self, bodies: tuple[EventBody, ...], command_id: CommandId) -> int:
        """Index what was decided; the command's place is that of the last body."""
        for body in bodies[:-1]:
            self._index(body)
        event = self._index(bodies[-1], command_id)
        self._journal.sync()
        return event.index

    def _acknowledged(
        self, command_id: CommandId, index: int, instance: InstanceId | None
    ) -> Acknowledged:
        durability: Literal["local", "volatile"] = "volatile" if self._journal.degraded else "local"
        return Acknowledged(
            command_id=command_id,
            term=self._election.counter,
            index=index,
            durability=durability,
            instance=instance,
        )

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
        for body in idle(self._scene(), self._memory):
            self._log.info("unloads", what=body.kind, why=getattr(body, "why", ""))
            self._index(body)
        for wish in wishes(self._scene(), self._memory):
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
