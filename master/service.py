"""Talks to the bus: one candidate of a node, and the leader's duties while it leads.

Order promised: an event is journalled, then applied, then published, then acknowledged, once it
is as safe as it can be. Only the leader accepts facts and commands; any other candidate replies
`NotHolder`, or why nothing can be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bus.client import BusClient
from bus.links.reactor import Reactor
from bus.process.clock import wall
from bus.process.identity import new_name
from bus.process.logs import Log
from bus.wire.codec import Envelope
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId
from bus.wire.instances import Instance
from bus.wire.messages.commands import Acknowledged, Command, CommandRefused
from bus.wire.messages.control import (
    AskCommand,
    AskEvents,
    AskSnapshot,
    FactTaken,
    NotHolder,
    TellFact,
    TermHeartbeat,
)
from bus.wire.messages.events import Event
from bus.wire.messages.peers import (
    AppendAck,
    AskVote,
    Candidacy,
    HandOver,
    PeersReading,
    Vote,
)
from bus.wire.messages.readings import UndoneChange, UndoneReading
from bus.wire.messages.wire import Message
from bus.wire.pool import PoolReading
from bus.wire.topics import reading_topic
from master import consensus
from master.decisions import SETTLE_GRACE_S, Holder, Policy
from master.log.journal import Journal
from master.log.recent_events import describe_undone
from master.log.sequencer import LogDraft

PLAN_S = 0.5
POOL_CHANGED_S, POOL_ALIKE_S = 1.0, 3.0
MAX_UNDONE = 100
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
    """Settings of the master. `settle_grace_s`: if the nodes of an instance are silent for this
    many seconds, the leader removes it. `listen`: where the ROUTER listens for other nodes."""

    candidate: consensus.CandidateSettings
    policy: Policy = field(default_factory=Policy)
    settle_grace_s: float = SETTLE_GRACE_S
    listen: tuple[str, ...] = ()


class Master:
    """One candidate for leader. On a node without peers it becomes the leader as soon as its
    switchboard answers."""

    def __init__(
        self, client: BusClient, reactor: Reactor, log: Log, settings: MasterSettings
    ) -> None:
        self.client = client
        self._reactor = reactor
        self._log = log
        self._undone: tuple[UndoneChange, ...] = ()
        self._pool_told: PoolReading | None = None
        self._pool_told_at = float("-inf")
        self._holder = Holder(
            settings.policy,
            lambda: InstanceId(new_name("inst")),
            settle_grace_s=settings.settle_grace_s,
        )
        files = settings.candidate
        self.shell = consensus.CandidateShell(
            client.speaker.node,
            files,
            log,
            timers=reactor,
            wire=consensus.CandidateLinks(client, reactor, log, files.addresses),
            journal=Journal(files.journal, log),
            term_file=consensus.TermFile(files.term_file, log),
            duties=self,
        )
        self.candidate = self.shell.candidate
        self._router = consensus.CandidateRouter(
            client, reactor, log, self._take_question, listen=settings.listen
        )
        for prefix in HEARD:
            client.hear(prefix, self._observe)
        client.hear(reading_topic("peers", client.speaker.node), self._observe_peers)
        self._skips_plan = False
        reactor.every(PLAN_S, self._plan_in_turn)
        self.shell.begin()

    def end_in_order(self, done: Callable[[], None]) -> None:
        """Hand over the term if we lead; `done` is called soon after."""
        self.shell.leave(done)

    def close(self) -> None:
        """Stop. Events that were written to the journal are on the disk."""
        self._router.close()
        self.shell.close()
        self.client.close()

    # --- the duties of a term ---

    def opened(self) -> LogDraft:
        """Return the first events of our new term."""
        draft = self._draft()
        self._holder.opened(draft, self._reactor.now())
        self._log_notes()
        return draft

    def answered(self, asker: bytes, answer: Acknowledged) -> None:
        """Send a reply, because its log entry is now as safe as the reply states."""
        self._router.answer(asker, answer)

    def undone(self, changes: Sequence[Event], copies: Sequence[Instance]) -> None:
        """Log the changes that were rolled back, and publish them as a reading that is valid for a
        day."""
        for event in changes:
            self._log.warning(
                "a change was undone because the leader's log lacks it; repeat it if needed",
                command_id=event.command_id,
                what=event.body.model_dump_json(),
                term=event.term,
                index=event.index,
            )
        for copy in copies:
            self._log.warning(
                "unloading an instance that the leader's log lacks; load it again if needed",
                model=copy.model,
                instance=copy.instance,
            )
        fresh = describe_undone(changes, copies, wall())
        self._undone = (*self._undone, *fresh)[-MAX_UNDONE:]
        node = self.client.speaker.node
        reading = UndoneReading(node=node, changes=self._undone)
        self.client.publish(reading_topic("undone", node), reading)

    # --- questions ---

    def _take_question(self, question: Message, asker: bytes) -> Message | None:
        self.shell.awake()
        match question:
            case TermHeartbeat() | Candidacy() | AskVote() | Vote() | AppendAck() | HandOver():
                self.shell.receive(question)
                return None
            case AskSnapshot() | AskEvents():
                return self.candidate.reply_to(question)
            case TellFact() if self.candidate.election.decides:
                return self._take_fact(question)
            case AskCommand(command=command) if self.candidate.election.decides:
                return self._command(command, asker)
            case AskCommand() | TellFact():
                return self._sent_on(question)
            case _:
                self._log.warning("unexpected question", kind=type(question).__name__)
                return None

    def _sent_on(self, question: AskCommand | TellFact) -> Message:
        """Return the reply of a candidate that does not lead: which node leads, or why nothing can
        be changed now."""
        election = self.candidate.election
        why = consensus.minority(election, self._reactor.now())
        if why is not None and isinstance(question, AskCommand):
            return CommandRefused(command_id=question.command.command_id, refusal=why)
        return NotHolder(holder=election.holder)

    def _take_fact(self, message: TellFact) -> FactTaken | None:
        draft = self._draft()
        taken = self._holder.take_fact(message, draft, self._reactor.now())
        self._append(draft)
        return FactTaken(fact_id=message.fact_id) if taken else None

    def _command(self, command: Command, asker: bytes) -> CommandRefused | None:
        """Decide a command. If it is written to the log, its reply waits until that log entry is
        safe."""
        draft, now = self._draft(), self._reactor.now()
        unsettled = self.candidate.unsettled(command, now)
        decision = self._holder.take_command(command, draft, now, unsettled=unsettled)
        self._append(draft)
        if isinstance(decision, Refusal):
            return CommandRefused(command_id=command.command_id, refusal=decision)
        if decision is not None:
            answer = Acknowledged(
                command_id=command.command_id,
                term=draft.term,
                index=decision.index,
                durability="volatile",
                instance=decision.instance,
                plan=decision.plan,
            )
            self.shell.answer(asker, answer)
        return None

    # --- readings and plans ---

    def _observe(self, _topic: str, envelope: Envelope) -> None:
        if self._holder.observe(envelope.message, self._reactor.now()):
            self._plan()

    def _observe_peers(self, _topic: str, envelope: Envelope) -> None:
        """Process our own switchboard's list of nodes and their addresses."""
        reading = envelope.message
        if isinstance(reading, PeersReading) and reading.node == self.client.speaker.node:
            self._holder.view.hear(reading, self._reactor.now())
            self.shell.know(consensus.candidates_in(reading))

    def _plan_in_turn(self) -> None:
        """Plan because time has passed. On a cluster of one node where no model waits for memory,
        every second turn is enough: changes of demand and load plan at once."""
        pool = self._pool_told
        is_quiet = pool is not None and not pool.waits and len(self.candidate.state.nodes) < 2
        self._skips_plan = is_quiet and not self._skips_plan
        if not self._skips_plan:
            self._plan()

    def _plan(self) -> None:
        if self.candidate.election.decides:
            draft = self._draft()
            now = self._reactor.now()
            self._holder.planned(draft, now)
            self._append(draft)
            self._tell_pool(now)

    def _tell_pool(self, now: float) -> None:
        """Publish the state of the pool: at once if the waits have changed, after `POOL_CHANGED_S`
        if anything else has, else after `POOL_ALIKE_S`."""
        node, last = self.client.speaker.node, self._pool_told
        reading = self._holder.pool(self.candidate.state, node, now)
        wait_s = POOL_ALIKE_S if reading == last else POOL_CHANGED_S
        if now - self._pool_told_at >= wait_s or last is None or _waits(reading) != _waits(last):
            self._pool_told, self._pool_told_at = reading, now
            self.client.publish(reading_topic("pool", node), reading)

    # --- the log ---

    def _draft(self) -> LogDraft:
        """Return an empty draft of the next log entries."""
        candidate = self.candidate
        return LogDraft(candidate.state, candidate.election.counter, candidate.me, wall())

    def _append(self, draft: LogDraft) -> None:
        self._log_notes()
        self.shell.append(draft)

    def _log_notes(self) -> None:
        for what, facts in self._holder.take_notes():
            self._log.info(what, **facts)


def _waits(reading: PoolReading) -> list[tuple[ModelId, str, tuple[InstanceId, ...]]]:
    return [(wait.model, wait.phase, wait.victims) for wait in reading.waits]
