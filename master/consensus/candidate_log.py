"""A candidate's copy of the log, while it leads and while it follows another leader.

Pure: it takes messages and timestamps, and returns journal entries and questions to other
candidates. Journal entries come in log order. When a snapshot of the state replaces the log, later
journal entries follow that state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.replica.mirror import Ask, Mirror
from bus.replica.state import ClusterState, apply
from bus.wire.ids import NodeId
from bus.wire.messages.control import (
    AskEvents,
    AskSnapshot,
    EventsFound,
    Snapshot,
    TermHeartbeat,
)
from bus.wire.messages.events import Event
from master.consensus.types import Append, Replace
from master.log.recent_events import RecentEvents, let_go
from master.log.replication import Acks

Followed = TermHeartbeat | Event | Snapshot | EventsFound
"""A leader's messages about its log."""


@dataclass(slots=True)
class CandidateLog:
    """A candidate's copy of the log. `mirror.state`: the state at the end of the log. `history`:
    the recent events before it. `acks`: how much of the log the other candidates have on disk,
    while we lead."""

    mirror: Mirror
    history: RecentEvents
    acks: Acks = field(default_factory=Acks)

    @classmethod
    def from_disk(cls, state: ClusterState, events: list[Event]) -> CandidateLog:
        """Return the log that a journal contains: a state and the events after it."""
        history = RecentEvents.behind(state)
        for event in events:
            state = apply(state, event)
            history.keep(event)
        mirror = Mirror(state=state, live=state.index > 0, counter=state.term, moves=[])
        return cls(mirror, history)

    def lead(self, counter: int, me: NodeId) -> None:
        """Begin to write the log as the leader of the term `counter`."""
        self.mirror.lead(counter, me)
        self.acks = Acks(opened=self.mirror.state.index + 1)

    def append(self, event: Event, after: ClusterState) -> None:
        """Add the next event as the leader; `after` is the state after it."""
        self.mirror.state = after
        self.history.keep(event)

    def follow(self, message: Followed, now: float) -> tuple[list[Append | Replace], Ask | None]:
        """Return the entries to write to the journal because of a leader's message, in order, and
        the next question to the leader, if any."""
        before = self.mirror.state
        match message:
            case TermHeartbeat():
                ask = self.mirror.heard_heartbeat(message, now)
            case Event():
                ask = self.mirror.heard_event(message, now)
            case Snapshot():
                ask = self.mirror.heard_snapshot(message, now)
            case EventsFound():
                ask = self.mirror.heard_found(message, now)
        return self._moved(before), ask

    def is_of(self, counter: int, holder: NodeId | None) -> bool:
        """Return whether this log is known to be a prefix of the log of that leader."""
        mirror = self.mirror
        is_known = mirror.holder is not None and (mirror.counter, mirror.holder) == (
            counter,
            holder,
        )
        return mirror.in_step and mirror.live and is_known

    def has_all_of(self, beat: TermHeartbeat) -> bool:
        """Return whether this log is the whole log of the leader that sent the heartbeat. Then no
        committed entry that we acknowledged is missing."""
        return self.is_of(beat.counter, beat.holder) and self.mirror.state.index == beat.index

    def reply_to(
        self, question: AskSnapshot | AskEvents, *, counter: int, me: NodeId
    ) -> Snapshot | EventsFound:
        """Return our reply, as the leader `me` of the term `counter`, to another candidate's
        question."""
        if isinstance(question, AskSnapshot):
            state = self.mirror.state
            return Snapshot(term=counter, index=state.index, state=state.model_dump(), holder=me)
        reply = self.history.find(question)
        return reply.model_copy(update={"term": counter, "holder": me})

    def _moved(self, before: ClusterState) -> list[Append | Replace]:
        moves, self.mirror.moves = self.mirror.moves or [], []
        whole = max((n for n, (event, _) in enumerate(moves) if event is None), default=0)
        actions: list[Append | Replace] = []
        for event, after in moves[whole:]:
            if event is None:
                actions.append(Replace(after, self.history.undone(after), let_go(before, after)))
                self.history = RecentEvents.behind(after)
            else:
                self.history.keep(event)
                actions.append(Append(event, after))
        return actions
