"""One candidate whole: its election, the log that it follows or writes, and who has which part.

Pure: messages and instants in, actions out; the shell (`master.consensus.shell`) carries them
out. Order promised: actions are to be done in the order given; an event is
appended before it is published, and what `synced` returns (acknowledgements to a holder, a
committed index) speaks only of what the shell has put on the disk before. A holder that fails
to keep its term does nothing of what follows `PersistTerm`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bus.replica.mirror import Ask, Mirror
from bus.replica.state import ClusterState, apply
from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from bus.wire.messages.commands import Command, ForgetNode
from bus.wire.messages.control import (
    AppendAck,
    AskEvents,
    AskSnapshot,
    AskVote,
    Candidacy,
    EventsFound,
    NotHolder,
    Snapshot,
    TermHeartbeat,
    Vote,
)
from bus.wire.messages.events import Event
from bus.wire.messages.wire import Message
from master.consensus import types
from master.consensus.actions import Act, Append, PublishEvent, Replace, Send
from master.consensus.election import stimulate
from master.consensus.types import (
    LAPSE_S,
    AskVotes,
    Election,
    GiveVote,
    LogRank,
    OpenTerm,
    PersistentState,
    Stimulus,
)
from master.consensus.votes import no_majority, reached, voters_unsettled
from master.log.recent_events import RecentEvents
from master.log.replication import Acks, LogSafety


@dataclass(slots=True)
class Candidate:
    """`mirror.state` is the log's state whether it is followed or written. `began` says that
    the journal has held events once, so that an empty one is a lost one."""

    election: Election
    mirror: Mirror
    history: RecentEvents
    degraded: bool = False
    lost: bool = False
    began: bool = False
    acks: Acks = field(default_factory=Acks)

    @classmethod
    def from_log(
        cls,
        me: NodeId,
        kept: PersistentState,
        log: tuple[ClusterState, list[Event]],
        *,
        voters: frozenset[NodeId] = frozenset(),
        priority: int = 0,
        degraded: bool = False,
        expects_others: bool = False,
    ) -> Candidate:
        """A candidate as its disk remembers it."""
        state, events = log
        history = RecentEvents.behind(state)
        for event in events:
            state = apply(state, event)
            history.keep(event)
        rank = LogRank(state.term, state.index, priority, me)
        gone = kept.garbled or (kept.began and state.index == 0)
        lost = gone and len(voters) >= types.FEWEST_VOTERS
        election = Election(
            me=me,
            rank=rank,
            counter=max(kept.counter, state.term),
            voted_for=kept.voted_for if kept.counter >= state.term else None,
            voters=voters,
            gone=frozenset(state.forgotten),
            eligible=not (degraded or lost),
            expects_peers=expects_others or bool((voters | set(state.nodes)) - {me}),
            members=frozenset(seat.node for seat in state.nodes.values()) - {me},
        )
        mirror = Mirror(state=state, live=state.index > 0, counter=state.term, moves=[])
        began = kept.began or state.index > 0
        return cls(election, mirror, history, degraded=degraded, lost=lost, began=began)

    @property
    def me(self) -> NodeId:
        """Our node."""
        return self.election.me

    @property
    def state(self) -> ClusterState:
        """The state at the end of the log that we have."""
        return self.mirror.state

    @property
    def holding(self) -> bool:
        """Whether we hold the term."""
        return self.election.role == "holding"

    # --- what happens ---

    def stimulated(self, stimulus: Stimulus, now: float) -> list[Act]:
        """Let the election hear of something."""
        self.election, wanted = stimulate(self.election, stimulus, now)
        actions: list[Act] = []
        for action in wanted:
            match action:
                case AskVotes(counter=counter, trial=trial):
                    actions += self._asks(counter, trial=trial)
                case GiveVote():
                    actions.append(Send(action.to, self._vote(action)))
                case OpenTerm(counter=counter):
                    self.mirror.lead(counter, self.me)
                    self.acks = Acks(opened=self.state.index + 1)
                    actions.append(action)
                case _:
                    actions.append(action)
        return actions

    def ticked(self, now: float) -> list[Act]:
        """Time has passed: the election's matters, and questions that had no answer."""
        actions = self.stimulated(types.Tick(), now)
        if not self.holding and (ask := self.mirror.due(now)) is not None:
            actions += self._asking(ask)
        return actions

    def appended(self, event: Event, now: float) -> list[Act]:
        """As the holder: the next event of the log."""
        self.mirror.moved(event)
        self.history.keep(event)
        return [Append(event, self.state), *self._grown(now), PublishEvent(event)]

    def synced(self, now: float, *, degraded: bool) -> list[Act]:
        """The shell has put the whole journal on the disk (unless that is `degraded`)."""
        actions: list[Act] = []
        if degraded != self.degraded:
            self.degraded = degraded
            actions += self._judged(now)
        if self.holding:
            self.acks.durable = 0 if degraded else self.state.index
        elif self.election.has_holder(now) and self.election.holder and not self.degraded:
            index = self.state.index if self._is_following() else 0
            ack = AppendAck(node=self.me, counter=self.election.counter, index=index)
            actions.append(Send(self.election.holder, ack))
        return actions

    def heard(self, message: Message, now: float) -> list[Act]:
        """What other candidates and holders say to us, or publish."""
        match message:
            case TermHeartbeat():
                return self._beat(message, now)
            case Event():
                return self._event(message, now)
            case Snapshot() | EventsFound():
                return [] if self.holding else self._found(message, now)
            case Candidacy():
                rank = LogRank(
                    message.last_term, message.last_index, message.priority, message.node
                )
                heard = types.HeardPeer(
                    rank, message.fit, message.counter, message.led, message.settled
                )
                return self.stimulated(heard, now)
            case AskVote():
                log = (message.last_term, message.last_index)
                ask = types.VoteAsked(
                    message.node, message.counter, message.trial, log, frozenset(message.voters)
                )
                return self.stimulated(ask, now)
            case Vote():
                vote = types.VoteHeard(
                    message.node,
                    message.counter,
                    message.trial,
                    message.granted,
                    message.known_counter,
                )
                return self.stimulated(vote, now)
            case AppendAck():
                return self._acked(message, now)
            case _:
                return []

    # --- what we say ---

    def candidacy(self, addresses: tuple[str, ...], now: float) -> Candidacy:
        """How good we are and where we are reached, for every other candidate."""
        rank, election = self.election.rank, self.election
        return Candidacy(
            node=self.me,
            last_term=rank.last_term,
            last_index=rank.last_index,
            priority=rank.priority,
            counter=election.counter,
            fit=election.eligible,
            led=election.has_holder(now),
            settled=election.warmed_up(now),
            addresses=addresses,
        )

    def beat(self, addresses: tuple[str, ...]) -> TermHeartbeat:
        """As the holder: our heartbeat."""
        election = self.election
        return TermHeartbeat(
            holder=self.me,
            counter=election.counter,
            index=self.state.index,
            digest=self.mirror.digest(),
            addresses=addresses,
            voters=tuple(sorted(election.voters)) if election.voted else (),
            committed=self.committed or 0,
            followers=election.weight(election.beaten_at) or 0,
        )

    def found(self, question: AskSnapshot | AskEvents) -> Snapshot | EventsFound | NotHolder:
        """The holder's answer to one that follows the log."""
        if not self.holding:
            return NotHolder(holder=self.election.holder)
        counter = self.election.counter
        if isinstance(question, AskSnapshot):
            state = self.state
            return Snapshot(
                term=counter, index=state.index, state=state.model_dump(), holder=self.me
            )
        found = self.history.find(question)
        return found.model_copy(update={"term": counter, "holder": self.me})

    @property
    def committed(self) -> int | None:
        """Up to where a majority of the voters has the log on disk; None without voters."""
        if not self.election.voted:
            return None
        return self.acks.committed(self.election.electors, self.me)

    def standing(self, now: float) -> LogSafety:
        """As the holder: how safe our log is."""
        heard = [seen.heard_at for seen in self.election.living.values() if seen.eligible]
        helped = any(now - at < LAPSE_S for at in (*heard, *self.election.acked_at.values()))
        return LogSafety(
            committed=self.committed,
            replicated=self.acks.replicated(),
            durable=self.acks.durable,
            degraded=self.degraded,
            helped=helped,
        )

    def minority(self, now: float) -> Refusal | None:
        """Why nothing can be changed from here: no majority of the voters is in reach. None
        where somebody holds the term, or could soon."""
        election = self.election
        if not election.voted or election.has_holder(now):
            return None
        heard = {node: seen.heard_at for node, seen in election.living.items() if seen.eligible}
        here = reached(heard, election, now)
        if here >= election.majority:
            return None
        return no_majority(election, here, now)

    def unsettled(self, command: Command, now: float) -> Refusal | None:
        """As the holder: why a command that changes who counts as a voter cannot be carried out
        now; None for any other. One change at a time, none before a majority has our whole log,
        and none whose new set has no majority in reach: that would end our term."""
        election = self.election
        if not (isinstance(command, ForgetNode) and election.voted):
            return None
        if command.node not in election.voters:
            return None
        if self.committed != self.state.index:
            return voters_unsettled(command.node)
        gone = {*election.gone, command.node}
        if not command.forgotten:
            gone.discard(command.node)
        changed = replace(election, gone=frozenset(gone))
        here = reached(election.acked_at, changed, now)
        return None if here >= changed.majority else no_majority(changed, here, now)

    # --- inside ---

    def _beat(self, beat: TermHeartbeat, now: float) -> list[Act]:
        heard = types.HeardBeat(
            beat.holder, beat.counter, frozenset(beat.voters), beat.index, beat.followers
        )
        actions = self.stimulated(heard, now)
        if self.holding or not self._is_term(beat.counter, beat.holder):
            return actions
        return actions + self._followed(self.mirror.heard_heartbeat(beat, now), now)

    def _event(self, event: Event, now: float) -> list[Act]:
        if self.holding or event.holder is None or not self._is_term(event.term, event.holder):
            return []
        return self._followed(self.mirror.heard_event(event, now), now)

    def _found(self, message: Snapshot | EventsFound, now: float) -> list[Act]:
        if isinstance(message, Snapshot):
            return self._followed(self.mirror.heard_snapshot(message, now), now)
        return self._followed(self.mirror.heard_found(message, now), now)

    def _acked(self, ack: AppendAck, now: float) -> list[Act]:
        actions = self.stimulated(types.AckHeard(ack.node, ack.counter), now)
        if self.holding and ack.counter == self.election.counter and ack.node != self.me:
            self.acks.heard(ack.node, ack.index)
        return actions

    def _is_term(self, counter: int, holder: NodeId) -> bool:
        return (counter, holder) == (self.election.counter, self.election.holder)

    def _is_following(self) -> bool:
        """Whether our journal is known to be the present holder's, as far as it goes."""
        mirror = self.mirror
        known = mirror.holder is not None and self._is_term(mirror.counter, mirror.holder)
        return mirror.in_step and mirror.live and known

    def _followed(self, ask: Ask | None, now: float) -> list[Act]:
        """Journal what moved the mirror; then ask what it wants to know."""
        moves, self.mirror.moves = self.mirror.moves or [], []
        whole = max((n for n, (event, _) in enumerate(moves) if event is None), default=0)
        actions: list[Act] = []
        for event, after in moves[whole:]:
            if event is None:
                actions.append(Replace(after, self.history.undone(after)))
                self.history = RecentEvents.behind(after)
            else:
                self.history.keep(event)
                actions.append(Append(event, after))
        if moves:
            actions += self._grown(now)
        return actions + ([] if ask is None else self._asking(ask))

    def _grown(self, now: float) -> list[Act]:
        """Our log has changed: our rank with it, and a lost journal is whole again."""
        state, rank = self.state, self.election.rank
        self.began = True
        mine = replace(rank, last_term=state.term, last_index=state.index)
        actions = self.stimulated(types.MyRank(mine, frozenset(state.forgotten)), now)
        if self.lost and self._is_following():
            self.lost = False
            actions += self._judged(now)
        return actions

    def _judged(self, now: float) -> list[Act]:
        return self.stimulated(types.Fitness(not (self.degraded or self.lost)), now)

    def _asking(self, ask: Ask) -> list[Act]:
        holder = self.mirror.holder
        return [] if holder is None or holder == self.me else [Send(holder, ask)]

    def _asks(self, counter: int, *, trial: bool) -> list[Act]:
        election = self.election
        ask = AskVote(
            node=self.me,
            counter=counter,
            trial=trial,
            last_term=election.rank.last_term,
            last_index=election.rank.last_index,
            voters=tuple(sorted(election.voters)),
        )
        return [Send(voter, ask) for voter in sorted(election.electors - {self.me})]

    def _vote(self, vote: GiveVote) -> Vote:
        return Vote(
            node=self.me,
            counter=vote.counter,
            trial=vote.trial,
            granted=vote.granted,
            known_counter=max(self.election.counter, self.election.seen),
        )
