"""Talks to the journal, the term file and the other candidates: the shell around `Candidate`.

Order promised: an event is appended before it is published; what is acknowledged, to the holder
or to an asker, is on the disk before (one fsync for all that a turn of the loop brought). With
voters a term or vote that could not be kept is not used: the candidate stands aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, assert_never

from bus.client import BusClient, topic_of
from bus.links.reactor import Reactor
from bus.links.transport import Change, Link
from bus.process.logs import Log
from bus.replica.state import ClusterState
from bus.wire.codec import Envelope
from bus.wire.ids import NodeId
from bus.wire.messages.commands import Acknowledged
from bus.wire.messages.control import Candidacy, TermHeartbeat
from bus.wire.messages.events import Event
from bus.wire.messages.wire import Message
from master.consensus.actions import Act, Append, PublishEvent, Replace, Send, Spread
from master.consensus.candidate import Candidate
from master.consensus.candidate_links import CandidateLinks, OpenLink, link_maker
from master.consensus.term_file import keep_term, read_term
from master.consensus.types import (
    HEARTBEAT_S,
    Beat,
    OpenTerm,
    PeersKnown,
    PersistentState,
    PersistTerm,
    StepDown,
    SwitchboardLost,
    SwitchboardUp,
)
from master.log.journal import Journal
from master.log.replication import Answers

TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class CandidateSettings:
    """What the composition root read. `priority`: the greater is the better candidate.
    `voters`: three or more node ids, or none. `addresses`: where other nodes reach our ROUTER,
    best first; none where there are no others. `expects_others`: this node was told of some,
    so that it does not claim before it has looked for them."""

    journal: Path
    term_file: Path
    priority: int = 0
    voters: tuple[NodeId, ...] = ()
    addresses: tuple[str, ...] = ()
    expects_others: bool = False


class Duty(Protocol):
    """What the holder does; told when it begins and ends."""

    def opened(self, counter: int) -> None:
        """We hold the term from now on: index what follows from that."""
        ...

    def answered(self, asker: bytes, answer: Acknowledged) -> None:
        """This answer may be given now."""
        ...


class CandidateShell:
    """One candidate with its disk and its peers."""

    def __init__(
        self,
        client: BusClient,
        reactor: Reactor,
        log: Log,
        seat: CandidateSettings,
        duty: Duty,
        *,
        open_link: OpenLink | None = None,
    ) -> None:
        self._client = client
        self._reactor = reactor
        self._log = log
        self._seat = seat
        self._duty = duty
        self._journal = Journal(seat.journal, log)
        self._kept = read_term(seat.term_file)
        self._term_kept = True
        self._answers = Answers()
        self._unsynced = self._flushing = False
        self._ticked_at = reactor.now()
        self._led: tuple[NodeId | None, int] = (None, 0)
        opened = self._journal.open()
        self.candidate = Candidate.from_log(
            client.speaker.node,
            self._kept,
            opened,
            voters=frozenset(seat.voters),
            priority=seat.priority,
            degraded=self._journal.degraded,
            expects_others=seat.expects_others,
        )
        self._peers = CandidateLinks(
            client.speaker,
            reactor,
            log,
            envelope=client.envelope,
            on_answer=self.heard,
            open_link=open_link or link_maker(client.security),
        )
        self._probe = Link("sub")
        client.hear("term", self._published)
        client.hear("event.", self._published)

    @property
    def state(self) -> ClusterState:
        """The state at the end of our log."""
        return self.candidate.state

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where our ROUTER is reached, best first; the local one last."""
        return (*self._seat.addresses, self._client.endpoints.candidate)

    def begin(self) -> None:
        """The ROUTER is bound: take part, as soon as our switchboard answers."""
        self._reactor.every(TICK_S, self.tick)
        self._reactor.every(HEARTBEAT_S, self._candidacy)
        self._reactor.watch_changes(self._probe, self._switchboard)
        self._probe.connect(self._client.endpoints.plane_out("control"))

    def close(self) -> None:
        """Stop; what was journalled is on the disk."""
        self._reactor.unwatch(self._probe)
        self._probe.close()
        self._peers.close()
        self._journal.close()

    def know(self, addresses: Mapping[NodeId, tuple[str, ...]]) -> None:
        """The other candidates that membership knows, with the addresses of their ROUTERs, best
        first. To be called whenever the set or an address changes."""
        before = self._peers.nodes
        self._peers.know(addresses)
        self._greet(before)
        known = PeersKnown(frozenset(addresses))
        self._do(self.candidate.stimulated(known, self._reactor.now()))

    def tick(self) -> None:
        """Time has passed. Also before anything is decided after a pause of ours: one that
        slept must not go on holding."""
        now = self._reactor.now()
        self._ticked_at = now
        self._do(self.candidate.ticked(now))
        self._give_answers()

    def awake(self) -> None:
        """Tick if we have not for a while."""
        if self._reactor.now() - self._ticked_at > 2 * TICK_S:
            self.tick()

    def heard(self, message: Message) -> None:
        """What another candidate said to us, or a holder answered."""
        self.awake()
        before = self._peers.nodes
        if isinstance(message, Candidacy):
            self._peers.meet(message.node, message.addresses)
        elif isinstance(message, TermHeartbeat):
            self._peers.meet(message.holder, message.addresses)
        self._greet(before)
        self._do(self.candidate.heard(message, self._reactor.now()))
        self._say_led()
        if isinstance(message, TermHeartbeat):
            self._flush_soon()
        if self.candidate.holding:
            self._give_answers()

    def append(self, event: Event) -> None:
        """As the holder: the next event, appended and published."""
        self._do(self.candidate.appended(event, self._reactor.now()))

    def answer(self, asker: bytes, answer: Acknowledged) -> None:
        """Give this answer as soon as its index is as safe as it can be."""
        self._answers.add(asker, answer, self._reactor.now())
        self._flush_soon()

    # --- inside ---

    def _switchboard(self, change: Change) -> None:
        said = SwitchboardUp() if change == "connected" else SwitchboardLost()
        self._do(self.candidate.stimulated(said, self._reactor.now()))

    def _published(self, _topic: str, envelope: Envelope) -> None:
        if envelope.node != self._client.speaker.node:
            self.heard(envelope.message)

    def _say_led(self) -> None:
        """Once for each holder that this candidate follows."""
        election = self.candidate.election
        led = (election.holder, election.counter)
        if led != self._led and election.holder not in (None, election.me):
            self._log.info("follows a holder", holder=election.holder, term=election.counter)
        self._led = led

    def _greet(self, known: frozenset[NodeId]) -> None:
        """Those whom we can send to only now hear at once how good we are: a cluster that starts
        need not wait for the next candidacy."""
        now = self._reactor.now()
        fresh = sorted(self._peers.nodes - known)
        self._do([Send(node, self.candidate.candidacy(self.addresses, now)) for node in fresh])

    def _candidacy(self) -> None:
        self._peers.look_after()
        now = self._reactor.now()
        self._do([Spread(self.candidate.candidacy(self.addresses, now))])

    def _do(self, actions: list[Act]) -> None:
        for action in actions:
            match action:
                case PersistTerm():
                    kept = replace(self._kept, counter=action.counter, voted_for=action.voted_for)
                    if not self._keep(kept) and self.candidate.election.voted:
                        self._do(self.candidate.synced(self._reactor.now(), degraded=True))
                        return
                case OpenTerm(counter=counter):
                    self._log.info("holds the term", term=counter, index=self.state.index)
                    self._duty.opened(counter)
                case StepDown(why=why):
                    self._log.warning("gave up the term", why=why)
                    self._answers.drop()
                case Beat():
                    beat = self.candidate.beat(self.addresses)
                    self._client.publish("term", beat)
                    self._peers.spread(beat)
                case Append(event=event, after=after):
                    self._journal.append(event, state_after=after)
                    self._unsynced = True
                    self._flush_soon()
                case Replace(state=state, undone=undone):
                    self._log.info("took a snapshot", index=state.index, term=state.term)
                    self._say_undone(undone)
                    self._journal.compact(state)
                    self._flush_soon()
                case PublishEvent(event=event):
                    self._client.publish(topic_of(event), event)
                case Send(to=to, message=message):
                    self._peers.send(to, message)
                case Spread(message=message):
                    self._peers.spread(message)
                case _:
                    assert_never(action)

    def _say_undone(self, undone: tuple[Event, ...]) -> None:
        """Changes that were acknowledged here and are not in the log that counts now."""
        for event in undone:
            self._log.warning(
                "undid a change that the holder's log lacks: repeat it if it is still wanted",
                command_id=event.command_id,
                what=event.body.model_dump_json(),
                term=event.term,
                index=event.index,
            )

    def _keep(self, kept: PersistentState) -> bool:
        """Put the term on the disk; whether it is there."""
        try:
            keep_term(self._seat.term_file, kept)
        except OSError as error:
            if self._term_kept:
                self._log.critical(
                    "could not keep the term: free some disk space",
                    file=str(self._seat.term_file),
                    error=str(error),
                )
            self._term_kept = False
            return False
        self._kept, self._term_kept = kept, True
        return True

    def _flush_soon(self) -> None:
        """Once for all that this turn of the loop brings."""
        if not self._flushing:
            self._flushing = True
            self._reactor.later(0.0, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._unsynced and not self._is_relied_on():
            return
        if self._unsynced:
            self._journal.sync()
            self._unsynced = False
        if self.candidate.began and not (self._kept.began or self._journal.degraded):
            self._keep(replace(self._kept, began=True))
        degraded = self._journal.degraded or not self._term_kept
        self._do(self.candidate.synced(self._reactor.now(), degraded=degraded))
        self._give_answers()

    def _is_relied_on(self) -> bool:
        """Whether anybody waits for the disk: an asker, a holder, or other candidates."""
        return bool(self._answers.waiting or self._peers.nodes or not self.candidate.holding)

    def _give_answers(self) -> None:
        if not self.candidate.holding or not self._answers.waiting:
            return
        now = self._reactor.now()
        for asker, answer in self._answers.ripe(self.candidate.standing(now), now):
            self._duty.answered(asker, answer)
