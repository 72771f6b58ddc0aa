"""One candidate: its election and its copy of the log.

Pure: it takes messages and timestamps, and returns actions. The shell (`master.consensus.shell`)
carries out the actions in the given order. An event is appended to the journal before it is
published. `synced` returns acknowledgements and a committed index that cover only what the shell
has written to disk. If `PersistTerm` fails, the shell drops all actions after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bus.replica.mirror import Ask
from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from bus.wire.messages.commands import Command, ForgetNode
from bus.wire.messages.control import (
    AskEvents,
    AskSnapshot,
    EventsFound,
    NotHolder,
    Snapshot,
    TermHeartbeat,
)
from bus.wire.messages.events import Event
from bus.wire.messages.peers import AppendAck, Candidacy, HandOver
from bus.wire.messages.wire import Message
from master.consensus import types
from master.consensus.candidate_log import CandidateLog, Followed
from master.consensus.election import stimulate
from master.consensus.types import LAPSE_S, Act, Election, LogRank, PersistentState, Send
from master.consensus.votes import no_majority, reached, voters_unsettled
from master.log.replication import LogSafety


@dataclass(frozen=True, slots=True)
class CandidateSettings:
    """Settings of a candidate. A greater `priority` ranks higher. `voters`: three or more node
    ids, or none. `addresses`: where other nodes reach our ROUTER, best first; empty on a node
    without peers. `expects_others`: peers are configured, so the candidate looks for them before
    it claims the term."""

    journal: Path
    term_file: Path
    priority: int = 0
    voters: tuple[NodeId, ...] = ()
    addresses: tuple[str, ...] = ()
    expects_others: bool = False

    @property
    def keys_file(self) -> Path:
        """Return the path of the file with API keys, which is beside the term file."""
        return self.term_file.with_name("api-keys")


@dataclass(slots=True)
class Candidate:
    """One candidate: its election and its log. `state`: the cluster's state at the end of the log.
    `began`: the journal once held events, so if it is empty now, they were lost. `degraded`: the
    journal cannot be written."""

    election: Election
    log: CandidateLog
    degraded: bool = False
    began: bool = False

    @classmethod
    def from_disk(
        cls,
        me: NodeId,
        stored: PersistentState,
        read: tuple[ClusterState, list[Event]],
        settings: CandidateSettings,
        *,
        degraded: bool,
        lost: bool = False,
    ) -> Candidate:
        """Return a candidate from its files: `stored` from the term file, `read` from the journal.
        `degraded`: the journal cannot be written. `lost`: the journal was damaged."""
        log = CandidateLog.from_disk(*read)
        state, voters = log.mirror.state, frozenset(settings.voters)
        gone = stored.garbled or (stored.began and state.index == 0)
        lost = lost or (gone and len(voters) >= types.FEWEST_VOTERS)
        election = Election(
            me=me,
            rank=LogRank(state.term, state.index, settings.priority, me),
            counter=max(stored.counter, state.term),
            voted_for=stored.voted_for if stored.counter >= state.term else None,
            voters=voters,
            gone=frozenset(state.forgotten),
            eligible=not (degraded or lost),
            lost=lost,
            expects_peers=settings.expects_others or bool((voters | set(state.nodes)) - {me}),
            members=frozenset(seat.node for seat in state.nodes.values()) - {me},
        )
        began = stored.began or state.index > 0
        return cls(election, log, degraded=degraded, began=began)

    @property
    def me(self) -> NodeId:
        """Return our id among the candidates."""
        return self.election.me

    @property
    def state(self) -> ClusterState:
        """Return the state at the end of our log."""
        return self.log.mirror.state

    @property
    def holding(self) -> bool:
        """Return whether we are the leader."""
        return self.election.role == "holding"

    # --- what happens ---

    def stimulated(self, stimulus: types.Stimulus, now: float) -> list[Act]:
        """Pass a stimulus to the election. Return the actions for the shell."""
        self.election, actions = stimulate(self.election, stimulus, now)
        for action in actions:
            if isinstance(action, types.OpenTerm):
                self.log.lead(action.counter, self.me)
                return [*actions, *self._mended(now)]  # from here on our log is the log
        return [*actions]

    def ticked(self, now: float) -> list[Act]:
        """Advance the election's time, and ask again what no candidate has answered. Return the
        actions."""
        actions = self.stimulated(types.Tick(), now)
        if not self.holding and (ask := self.log.mirror.due(now)) is not None:
            actions += self._asking(ask)
        return actions

    def appended(self, events: Sequence[tuple[Event, ClusterState]], now: float) -> list[Act]:
        """Add events to our log as the leader, each with the state after it; return the actions."""
        actions: list[Act] = []
        for event, after in events:
            self.log.append(event, after)
            actions += [types.Append(event, after), *self._grown(now), types.PublishEvent(event)]
        return actions

    def synced(self, now: float, *, degraded: bool) -> list[Act]:
        """Record that the whole journal is on disk, or that it cannot be written (`degraded`).
        Return the actions that follow, such as the acknowledgement to the leader."""
        actions: list[Act] = []
        if degraded != self.degraded:
            self.degraded = degraded
            lost = self.election.lost
            actions += self.stimulated(types.Fitness(not (degraded or lost), lost), now)
        if self.holding:
            self.log.acks.durable = 0 if degraded else self.state.index
        elif self.election.has_holder(now) and self.election.holder and not self.degraded:
            counter, holder = self.election.counter, self.election.holder
            index = self.state.index if self.log.is_of(counter, holder) else 0
            ack = AppendAck(node=self.me, counter=counter, index=index)
            actions.append(Send(self.election.holder, ack))
        return actions

    def receive(self, message: Message, now: float) -> list[Act]:
        """Process a message of another candidate or of the leader. Return the actions."""
        if isinstance(message, HandOver):
            term = message.term
            if not self.log.is_of(term.counter, term.holder):
                return []
        actions = self.stimulated(message, now) if isinstance(message, types.Said) else []
        match message:
            case AppendAck(node=node, counter=counter, index=index):
                if self.holding and counter == self.election.counter and node != self.me:
                    self.log.acks.record(node, index)
            case TermHeartbeat() | Event() | Snapshot() | EventsFound():
                if not self.holding and self._is_of_our_term(message):
                    actions += self._followed(message, now)
                    if isinstance(message, TermHeartbeat) and self.log.has_all_of(message):
                        actions += self._mended(now)
            case _:
                pass
        return actions

    # --- what we say ---

    def candidacy(self, addresses: tuple[str, ...], now: float) -> Candidacy:
        """Return the report about this candidate (its rank and addresses) that every other
        candidate gets."""
        election, rank = self.election, self.election.rank
        return Candidacy(
            node=self.me,
            last_term=rank.last_term,
            last_index=rank.last_index,
            priority=rank.priority,
            counter=election.counter,
            fit=election.eligible and not election.leaving,
            led=election.has_holder(now),
            settled=election.warmed_up(now),
            addresses=addresses,
        )

    def beat(self, addresses: tuple[str, ...]) -> TermHeartbeat:
        """Return the heartbeat that this candidate sends as the leader."""
        election = self.election
        return TermHeartbeat(
            holder=self.me,
            counter=election.counter,
            index=self.state.index,
            digest=self.log.mirror.digest(),
            addresses=addresses,
            voters=tuple(sorted(election.voters)) if election.voted else (),
            committed=self.committed or 0,
            followers=election.weight(election.beaten_at) or 0,
            handed=election.handed,
        )

    def reply_to(self, question: AskSnapshot | AskEvents) -> Snapshot | EventsFound | NotHolder:
        """Return the reply to another candidate's question about the log; `NotHolder` if we do not
        lead."""
        if not self.holding:
            return NotHolder(holder=self.election.holder)
        return self.log.reply_to(question, counter=self.election.counter, me=self.me)

    @property
    def committed(self) -> int | None:
        """Return the highest index that a majority of voters has on disk; None without voters."""
        if not self.election.voted:
            return None
        return self.log.acks.committed(self.election.electors, self.me)

    def safety(self, now: float) -> LogSafety:
        """Return the highest index of the leader's log that is safe on this disk, the highest on
        another candidate's disk, and the highest on the disks of a majority."""
        arrivals = [seen.heard_at for seen in self.election.living.values() if seen.eligible]
        helped = any(now - at < LAPSE_S for at in (*arrivals, *self.election.acked_at.values()))
        return LogSafety(
            committed=self.committed,
            replicated=self.log.acks.replicated(),
            durable=self.log.acks.durable,
            degraded=self.degraded,
            helped=helped,
        )

    def unsettled(self, command: Command, now: float) -> Refusal | None:
        """Return why the leader cannot change the voters now; None if it can, and for other
        commands.

        Voters change one at a time, and only after a majority has our whole log. A new set of
        voters needs a majority in reach, because our term would end without one.
        """
        election = self.election
        if not isinstance(command, ForgetNode):
            return None
        if not election.voted or command.node not in election.voters:
            return None
        if self.committed != self.state.index:
            return voters_unsettled(command.node)
        node_set = {command.node}
        gone = election.gone | node_set if command.forgotten else election.gone - node_set
        changed = replace(election, gone=gone)
        here = reached(election.acked_at, changed, now)
        return None if here >= changed.majority else no_majority(changed, here, now)

    # --- inside ---

    def _is_of_our_term(self, message: Followed) -> bool:
        """Return whether a message comes from the leader that this candidate follows. Replies to
        our questions always count; the mirror checks them."""
        match message:
            case TermHeartbeat(holder=holder, counter=counter) | Event(holder=holder, term=counter):
                ours = (self.election.counter, self.election.holder)
                return holder is not None and (counter, holder) == ours
            case _:
                return True

    def _followed(self, message: Followed, now: float) -> list[Act]:
        """Return the actions for the leader's message about its log: journal entries, then the
        questions for missing entries."""
        moved, ask = self.log.follow(message, now)
        actions: list[Act] = [*moved]
        if moved:
            actions += self._grown(now)
        return actions + ([] if ask is None else self._asking(ask))

    def _grown(self, now: float) -> list[Act]:
        """Tell the election that our log has changed. Return its actions."""
        state, rank = self.state, self.election.rank
        self.began = True
        mine = replace(rank, last_term=state.term, last_index=state.index)
        return self.stimulated(types.MyRank(mine, frozenset(state.forgotten)), now)

    def _mended(self, now: float) -> list[Act]:
        """Record that our log, of which a part was lost, is complete again. Return the actions."""
        if not self.election.lost:
            return []
        return [types.Mended(), *self.stimulated(types.Fitness(not self.degraded), now)]

    def _asking(self, ask: Ask) -> list[Act]:
        holder = self.log.mirror.holder
        return [] if holder is None or holder == self.me else [Send(holder, ask)]
