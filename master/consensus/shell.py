"""Talks to the journal, the term file and the other candidates: the shell around `Candidate`, which
carries out its actions.

Order promised: an event is appended to the journal before it is published, and everything that is
acknowledged is on disk before that (one fsync per iteration of the loop). With voters, a term or
vote that could not be written to disk is not used. Disk, links and timers are parameters: the
simulation runs this shell with its own versions of `Files`, `CandidateLinks` and `Reactor`, which
have the methods used here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, assert_never

from bus.links.reactor import Reactor
from bus.links.transport import Change
from bus.process.logs import Log
from bus.wire.ids import NodeId
from bus.wire.instances import Instance
from bus.wire.messages.commands import Acknowledged
from bus.wire.messages.control import TermHeartbeat
from bus.wire.messages.events import Event
from bus.wire.messages.peers import Candidacy
from bus.wire.messages.wire import Message
from master.consensus import types
from master.consensus.candidate import Candidate, CandidateSettings
from master.consensus.candidate_links import CandidateLinks
from master.consensus.keys_file import KeysFile, keys_are_ahead, returned_keys
from master.consensus.leaving import Leaving
from master.consensus.term_file import TermFile
from master.consensus.types import Act, Send
from master.log.journal import Journal
from master.log.replication import Answers
from master.log.sequencer import LogDraft

TICK_S = 0.1


class TermDuties(Protocol):
    """The leader's work that this shell calls (`master.service` implements it)."""

    def opened(self) -> LogDraft:
        """Return the first events of our new term."""
        ...

    def answered(self, asker: bytes, answer: Acknowledged) -> None:
        """Send a reply to a command, because its log entry is now as safe as the reply states."""
        ...

    def undone(self, changes: Sequence[Event], copies: Sequence[Instance]) -> None:
        """Report what the new log lacks: the changes that were acknowledged on this node, and the
        instances `copies`."""
        ...


class CandidateShell:
    """One candidate with its disk and its links. It opens the journal and closes it.
    `_doubts_keys`: our log may lack API keys, and no complete log has replaced it yet."""

    def __init__(
        self,
        node: NodeId,
        settings: CandidateSettings,
        log: Log,
        *,
        timers: Reactor,
        wire: CandidateLinks,
        journal: Journal,
        term_file: TermFile,
        duties: TermDuties,
    ) -> None:
        read = journal.open()
        self.candidate = Candidate.from_disk(
            node,
            term_file.state,
            read,
            settings,
            degraded=journal.degraded,
            lost=journal.lost,
        )
        self._log = log
        self._timers = timers
        self._wire = wire
        self._journal = journal
        self._term_file = term_file
        self._keys_file = KeysFile(settings.keys_file, log, journal.files)
        began, state = self.candidate.began or term_file.state.garbled, self.candidate.state
        self._log_lost = journal.lost or (began and state.index == 0)
        self._doubts_keys = self._log_lost or keys_are_ahead(self._keys_file.content, state)
        self._duties = duties
        self._answers = Answers()
        self._flushing = False
        self._unsynced = True  # a process that was killed may have left its last entries unsynced
        self._ticked_at = timers.now()
        self._said_holder: tuple[NodeId | None, int] = (None, 0)
        self._leaving = Leaving(self.candidate)
        self._on_left: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Begin to take part in elections once our switchboard answers. Our ROUTER must be bound
        before."""

        def keep_time() -> None:
            """Advance time again and again. A leader without other candidates only has to be in
            time for its next heartbeat."""
            self.tick()
            wait_s, election = TICK_S, self.candidate.election
            if self.candidate.holding and not self._wire.nodes:
                wait_s = max(wait_s, election.beaten_at + types.HEARTBEAT_S - self._ticked_at)
            self._timers.later(wait_s, keep_time)

        self._timers.later(TICK_S, keep_time)
        self._timers.every(types.HEARTBEAT_S, self._announce)
        self._wire.listen(self.receive, self._switchboard)

    def leave(self, on_left: Callable[[], None]) -> None:
        """Hand over the term if we lead. Call `on_left` once another candidate leads or there is
        nothing to wait for: at the latest after `HAND_OVER_S` and a tick."""
        self._on_left = on_left
        self._do(self._leaving.begin(self._timers.now()))
        self._announce()
        self._do(self._leaving.turn(self._timers.now()))

    def close(self) -> None:
        """Stop. If the journal could not be written before, write it now, provided that the disk
        has space and our log is the leader's."""
        self._wire.close()
        if self.candidate.holding:
            self._journal.keep_whole(self.candidate.state)
        self._journal.close()

    def know(self, addresses: Mapping[NodeId, tuple[str, ...]]) -> None:
        """Set the other candidates, with their ROUTER addresses, best first; call it at each
        change."""
        before = self._wire.nodes
        self._wire.know(addresses)
        self._greet(before)
        stimulus = types.PeersKnown(frozenset(addresses))
        self._do(self.candidate.stimulated(stimulus, self._timers.now()))

    def tick(self) -> None:
        """Advance time. This is also called before any decision after a pause of this process,
        because after a long sleep a leader must step down first."""
        now = self._timers.now()
        self._ticked_at = now
        self._do(self.candidate.ticked(now))
        self._give_answers()
        self._do(self._leaving.turn(now))

    def awake(self) -> None:
        """Advance time if it was last advanced too long ago."""
        if self._timers.now() - self._ticked_at > 2 * TICK_S:
            self.tick()

    def receive(self, message: Message) -> None:
        """Process a message of another candidate or of the leader."""
        self.awake()
        before = self._wire.nodes
        if isinstance(message, Candidacy):
            self._wire.meet(message.node, message.addresses)
        elif isinstance(message, TermHeartbeat):
            self._wire.meet(message.holder, message.addresses)
        self._greet(before)
        self._do(self.candidate.receive(message, self._timers.now()))
        if isinstance(message, TermHeartbeat) and self.candidate.log.has_all_of(message):
            self._doubts_keys = False
        self._say_holder()
        if isinstance(message, TermHeartbeat):
            self._flush_soon()
        self._give_answers()
        self._do(self._leaving.turn(self._timers.now()))

    def append(self, draft: LogDraft) -> None:
        """Append the next events to the log and publish them, as the leader."""
        self._do(self.candidate.appended(draft.events, self._timers.now()))

    def answer(self, asker: bytes, answer: Acknowledged) -> None:
        """Send this reply once its log entry is as safe as possible: on the disks of a majority of
        voters, or of another candidate."""
        self._answers.add(asker, answer, self._timers.now())
        self._flush_soon()

    # --- inside ---

    def _switchboard(self, change: Change) -> None:
        stimulus = types.SwitchboardUp() if change == "connected" else types.SwitchboardLost()
        self._do(self.candidate.stimulated(stimulus, self._timers.now()))

    def _say_holder(self) -> None:
        """Log each new leader once."""
        election = self.candidate.election
        leader = (election.holder, election.counter)
        if leader != self._said_holder and election.holder not in (None, election.me):
            self._log.info("following the leader", holder=election.holder, term=election.counter)
        self._said_holder = leader

    def _greet(self, before: frozenset[NodeId]) -> None:
        """Send our candidacy to new peers at once, so that a starting cluster need not wait for the
        next regular one."""
        fresh = sorted(self._wire.nodes - before)
        self._do([Send(node, self._candidacy()) for node in fresh])

    def _announce(self) -> None:
        self._wire.look_after()
        self._journal.look(self.candidate.state)
        self._do([types.Spread(self._candidacy())])

    def _candidacy(self) -> Candidacy:
        return self.candidate.candidacy(self._wire.addresses, self._timers.now())

    def _do(self, actions: list[Act]) -> None:
        for action in actions:
            match action:
                case types.PersistTerm(counter=counter, voted_for=voted_for):
                    is_written = self._term_file.keep_vote(counter, voted_for)
                    if not is_written and self.candidate.election.voted:
                        self._do(self.candidate.synced(self._timers.now(), degraded=True))
                        return
                case types.OpenTerm(counter=counter):
                    self._log.info("became leader", term=counter, index=self.candidate.state.index)
                    self._open_term()
                case types.StepDown(why=why):
                    self._log.warning("stepped down as leader", why=why)
                    self._answers.drop()
                case types.Beat():
                    beat = self.candidate.beat(self._wire.addresses)
                    self._wire.publish(beat)
                    self._wire.spread(beat)
                case types.Append(event=event, after=after):
                    self._journal.append(event, state_after=after)
                    self._unsynced = True
                    self._flush_soon()
                case types.Replace(state=state, undone=undone, let_go=copies):
                    self._log.info(
                        "replaced the log by a snapshot", index=state.index, term=state.term
                    )
                    if undone or copies:
                        self._duties.undone(undone, copies)
                    self._journal.compact(state)
                    self._doubts_keys = False
                    self._flush_soon()
                case types.Mended():
                    self._log.info(
                        "the journal is complete again", index=self.candidate.state.index
                    )
                    self._journal.mended(self.candidate.state)
                    self._flush_soon()
                case types.PublishEvent(event=event):
                    self._wire.publish(event)
                case Send(to=to, message=message):
                    self._wire.send(to, message)
                case types.Spread(message=message):
                    self._wire.spread(message)
                case types.Left():
                    self._on_left()
                case _:
                    assert_never(action)

    def _open_term(self) -> None:
        """Begin our term. First restore API keys that our log may lack, before any node reads the
        log."""
        ended = self.candidate.state
        draft = self._duties.opened()
        if self._doubts_keys:
            for body in returned_keys(self._keys_file.content, ended, lost=self._log_lost):
                self._log.critical(
                    "the log may lack API keys; restoring them from the API key file",
                    gives_back=body.kind,
                )
                draft.add(body)
        self.append(draft)
        self._doubts_keys = False

    def _flush_soon(self) -> None:
        """Schedule one fsync for all changes in this iteration of the loop."""
        if not self._flushing:
            self._flushing = True
            self._timers.later(0.0, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._doubts_keys:
            self._keys_file.keep(self.candidate.state)
        if self._unsynced:
            others = self._wire.nodes or not self.candidate.holding
            if not (others or self._answers.waiting):
                return  # until an asker, a holder or another candidate waits for the disk
            self._journal.sync()
            self._unsynced = False
        if self.candidate.began and not self._journal.degraded:
            self._term_file.keep_began()
        degraded = self._journal.degraded or not self._term_file.sound
        self._do(self.candidate.synced(self._timers.now(), degraded=degraded))
        self._give_answers()

    def _give_answers(self) -> None:
        if not self.candidate.holding or not self._answers.waiting:
            return
        now = self._timers.now()
        for asker, answer in self._answers.ripe(self.candidate.safety(now), now):
            self._duties.answered(asker, answer)
