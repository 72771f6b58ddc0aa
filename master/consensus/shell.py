"""Talks to the journal, the term file and the other candidates: the shell around `Candidate`.

Order promised: an event is appended before it is published; what is acknowledged, to the holder
or to an asker, is on the disk before (one fsync for all that a turn of the loop brought). With
voters a term or vote that could not be kept is not used: the candidate stands aside. Disk, links
and timers are given to it: the simulation runs this very shell on others, which have the methods
of `Files`, `CandidateLinks` and `Reactor` that are used here.
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
    """What the holder of a term does, as far as the shell has to know."""

    def opened(self) -> LogDraft:
        """Return what our new term begins with, behind our log."""
        ...

    def answered(self, asker: bytes, answer: Acknowledged) -> None:
        """Give an answer that is now as safe as it says."""
        ...

    def undone(self, changes: Sequence[Event], copies: Sequence[Instance]) -> None:
        """Tell of changes that were acknowledged here, and of copies of models, that are not in the
        log that counts now."""
        ...


class CandidateShell:
    """One candidate with its disk and its links. It opens the journal; closing closes it.

    `_doubts_keys`: our log may lack API keys, and no log that has them has taken its place yet."""

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
            term_file.kept,
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
        began, state = self.candidate.began or term_file.kept.garbled, self.candidate.state
        self._log_lost = journal.lost or (began and state.index == 0)
        self._doubts_keys = self._log_lost or keys_are_ahead(self._keys_file.kept, state)
        self._duties = duties
        self._answers = Answers()
        self._flushing = False
        self._unsynced = True  # a process that was killed may have left its last entries unsynced
        self._ticked_at = timers.now()
        self._said_holder: tuple[NodeId | None, int] = (None, 0)
        self._leaving = Leaving(self.candidate)
        self._on_left: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Take part, as soon as our switchboard answers. Our ROUTER has to be bound before."""
        self._timers.every(TICK_S, self.tick)
        self._timers.every(types.HEARTBEAT_S, self._announce)
        self._wire.listen(self.heard, self._switchboard)

    def leave(self, on_left: Callable[[], None]) -> None:
        """Hand on the term, where we hold it; `on_left` is called once another holds it, or
        nothing is left to wait for: within `HAND_OVER_S` and a tick."""
        self._on_left = on_left
        self._do(self._leaving.begin(self._timers.now()))
        self._announce()
        self._do(self._leaving.turn(self._timers.now()))

    def close(self) -> None:
        """Stop; what was journalled is on the disk, and so is what was only counted, if there is
        room by now and this log is the one that counts."""
        self._wire.close()
        if self.candidate.holding:
            self._journal.keep_whole(self.candidate.state)
        self._journal.close()

    def know(self, addresses: Mapping[NodeId, tuple[str, ...]]) -> None:
        """Take these for the other candidates, with the addresses of their ROUTERs, best first.
        To be called whenever the set or an address changes."""
        before = self._wire.nodes
        self._wire.know(addresses)
        self._greet(before)
        known = types.PeersKnown(frozenset(addresses))
        self._do(self.candidate.stimulated(known, self._timers.now()))

    def tick(self) -> None:
        """Let time pass. Also before anything is decided after a pause of ours: one that slept
        must not go on holding."""
        now = self._timers.now()
        self._ticked_at = now
        self._do(self.candidate.ticked(now))
        self._give_answers()
        self._do(self._leaving.turn(now))

    def awake(self) -> None:
        """Tick where that was not done for a while."""
        if self._timers.now() - self._ticked_at > 2 * TICK_S:
            self.tick()

    def heard(self, message: Message) -> None:
        """Take what another candidate said to us, or a holder published or answered."""
        self.awake()
        before = self._wire.nodes
        if isinstance(message, Candidacy):
            self._wire.meet(message.node, message.addresses)
        elif isinstance(message, TermHeartbeat):
            self._wire.meet(message.holder, message.addresses)
        self._greet(before)
        self._do(self.candidate.heard(message, self._timers.now()))
        if isinstance(message, TermHeartbeat) and self.candidate.log.has_all_of(message):
            self._doubts_keys = False
        self._say_holder()
        if isinstance(message, TermHeartbeat):
            self._flush_soon()
        self._give_answers()
        self._do(self._leaving.turn(self._timers.now()))

    def append(self, draft: LogDraft) -> None:
        """Append and publish the next events of the log, as the holder."""
        self._do(self.candidate.appended(draft.events, self._timers.now()))

    def answer(self, asker: bytes, answer: Acknowledged) -> None:
        """Give this answer as soon as its index is as safe as it can be."""
        self._answers.add(asker, answer, self._timers.now())
        self._flush_soon()

    # --- inside ---

    def _switchboard(self, change: Change) -> None:
        said = types.SwitchboardUp() if change == "connected" else types.SwitchboardLost()
        self._do(self.candidate.stimulated(said, self._timers.now()))

    def _say_holder(self) -> None:
        """Log each holder that this candidate follows once."""
        election = self.candidate.election
        known = (election.holder, election.counter)
        if known != self._said_holder and election.holder not in (None, election.me):
            self._log.info("follows a holder", holder=election.holder, term=election.counter)
        self._said_holder = known

    def _greet(self, known: frozenset[NodeId]) -> None:
        """Tell those whom we can send to only now at once how good we are: a cluster that starts
        need not wait for the next candidacy."""
        fresh = sorted(self._wire.nodes - known)
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
                    kept = self._term_file.keep_vote(counter, voted_for)
                    if not kept and self.candidate.election.voted:
                        self._do(self.candidate.synced(self._timers.now(), degraded=True))
                        return
                case types.OpenTerm(counter=counter):
                    self._log.info("holds the term", term=counter, index=self.candidate.state.index)
                    self._open_term()
                case types.StepDown(why=why):
                    self._log.warning("gave up the term", why=why)
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
                    self._log.info("took a snapshot", index=state.index, term=state.term)
                    if undone or copies:
                        self._duties.undone(undone, copies)
                    self._journal.compact(state)
                    self._doubts_keys = False
                    self._flush_soon()
                case types.Mended():
                    self._log.info("the journal is whole again", index=self.candidate.state.index)
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
        """Begin our term. API keys that our log may lack are in it before anyone reads it."""
        ended = self.candidate.state
        draft = self._duties.opened()
        if self._doubts_keys:
            for body in returned_keys(self._keys_file.kept, ended, lost=self._log_lost):
                self._log.critical("the log may lack API keys", gives_back=body.kind)
                draft.add(body)
        self.append(draft)
        self._doubts_keys = False

    def _flush_soon(self) -> None:
        """Flush once for all that this turn of the loop brings."""
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
