"""Follows the cluster's log: applies events in order, detects gaps, asks for snapshots.

Pure (ZeroMQ guide, *Clone* pattern; Raft's consistency check). Each `heard_*` method processes a
received message and returns the next question to the leader, if any. Promised order: `state` moves
only along one leader's index order; messages of a lower term, or repeated ones, change nothing.
Only a heartbeat tells which node is the leader. A new leader's events are applied only once its log
is known to contain our own last event. Otherwise its snapshot replaces our state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.replica.state import ClusterState, apply, digest
from bus.wire.ids import NodeId
from bus.wire.messages.control import AskEvents, AskSnapshot, EventsFound, Snapshot, TermHeartbeat
from bus.wire.messages.events import Event

MAX_STASH = 50_000
"""Maximum number of events that are stored while events before them are missing; beyond that a
snapshot is cheaper."""
MAX_ASKED = 1_000
"""Maximum number of events that one question asks for."""
MAX_REPLAYED = 5_000
"""A mirror that lacks more events than this takes a snapshot instead."""
DOUBTED_S = 1.5
"""If the last heartbeat of our leader is younger than this, we do not change to another leader that
fewer candidates follow."""
LAPSED_S = 2.0
"""A leader that has been silent for this long counts as gone."""
VOTED_FOR_S = 10.0
"""A leader that a majority elected outranks a leader without votes, whatever their terms, until the
elected one has been silent for this many seconds."""
FORGOTTEN_S = 10.0
"""If the leader of a higher term has been silent for this long, and no voters elected it, perhaps
no other node learnt of that term. Then a leader with a lower term is followed."""
RETRY_S = 0.5
"""An unanswered question is repeated after this long."""

Ask = AskSnapshot | AskEvents
Move = tuple[Event | None, ClusterState]
"""An event and the state after it. Event None: a snapshot's state replaced the previous one."""


@dataclass(slots=True)
class Mirror:
    """A copy of the cluster's state that follows the log.

    `live`: it has received a first snapshot. (`counter`, `holder`): number and leader of the
    highest known term. `voted`: a majority elected that leader; `followers`: how many other
    candidates follow it. `in_step`: the leader's log is known to contain our last event.
    `heard_at`: the time of the last heartbeat. `asked_at`: when the open question was sent; None
    without an open question. `stash`: later events by index, while events before them are missing.
    `moves`, if not None, collects all changes of the state, oldest first, until its owner empties
    it.
    """

    state: ClusterState = field(default_factory=ClusterState)
    live: bool = False
    holder: NodeId | None = None
    counter: int = 0
    in_step: bool = False
    asked_at: float | None = None
    voted: bool = False
    followers: int = 0
    heard_at: float = 0.0
    stash: dict[int, Event] = field(default_factory=dict[int, Event])
    last_digest: tuple[int, int] = (-1, 0)
    moves: list[Move] | None = None

    def heard_event(self, event: Event, now: float) -> Ask | None:
        """Apply a received event, store it if events before it are missing, or ignore it if it is
        old. Return the next question to the leader, if any."""
        if self.counter and event.term != self.counter:
            return None
        if _differ(event.holder, self.holder):
            return None
        if self.live and self.in_step and event.index <= self.state.index:
            return None
        self._stash(event)
        if not self.live or not self.in_step:
            return self._ask(self._question(event.index), now)
        self._drain()
        if self.stash:
            return self._ask_gap(now)
        self.asked_at = None
        return None

    def heard_heartbeat(self, beat: TermHeartbeat, now: float) -> Ask | None:
        """Compare a leader's heartbeat with the state. Return a question if the end of the log is
        missing or the digests differ."""
        voted = bool(beat.voters)
        if voted == self.voted and self._is_older(beat.counter, beat.holder, now):
            return None
        if self.voted and not voted and now - self.heard_at < VOTED_FOR_S:
            return None
        if not voted and self._is_lighter(beat, now):
            return None
        if (beat.counter, beat.holder, voted) != (self.counter, self.holder, self.voted):
            self._follow(beat.counter, beat.holder)
        self.voted, self.heard_at, self.followers = voted, now, beat.followers
        if self.live and beat.index == self.state.index and beat.digest == self.digest():
            self.in_step = True
            return None
        if (self.state.term, self.state.holder) == (beat.counter, beat.holder):
            self.in_step = True  # our last event is of this term, so our log is the leader's
        if not self.live or not self.in_step:
            return self._ask(self._question(beat.index), now)
        if beat.index > self.state.index:
            return self._ask_gap(now, upto=beat.index)
        if beat.index == self.state.index:
            self.asked_at, self.in_step = None, False
            return self._ask(AskSnapshot(), now)
        return None

    def heard_snapshot(self, snapshot: Snapshot, now: float) -> Ask | None:
        """Replace the state by a snapshot, then apply the stored events that follow it. Return a
        question about missing events, if there are any."""
        self.asked_at = None
        if snapshot.term < self.counter or _differ(snapshot.holder, self.holder):
            return None
        if snapshot.term == self.counter and self.in_step and snapshot.index < self.state.index:
            return None
        if snapshot.term > self.counter:
            self._follow(snapshot.term, snapshot.holder)
        self.state = ClusterState.model_validate(snapshot.state)
        self.last_digest = (-1, 0)
        self.live = self.in_step = True
        if self.moves is not None:
            self.moves.append((None, self.state))
        for index in [i for i in self.stash if i <= self.state.index]:
            del self.stash[index]
        self._drain()
        return self._ask_gap(now) if self.stash else None

    def heard_found(self, reply: EventsFound, now: float) -> Ask | None:
        """Apply the requested events. If the reply is incomplete (the leader has deleted some
        events, or our last event is not in its log), return a request for a snapshot."""
        if reply.term is not None and reply.term != self.counter:
            return None
        if _differ(reply.holder, self.holder):
            return None
        self.asked_at = None
        if not reply.complete:
            self.in_step = False
            return self._ask(AskSnapshot(), now)
        self.in_step = self.live
        for event in reply.events:
            if event.index > self.state.index:
                self._stash(event)
        self._drain()
        return self._ask_gap(now) if self.stash else None

    def due(self, now: float) -> Ask | None:
        """Return the open question again if it was not answered in time. Call this regularly."""
        if self.asked_at is None or now - self.asked_at < RETRY_S:
            return None
        self.asked_at = None
        if not self.live or not self.in_step:
            return self._ask(self._question(self.state.index + 1), now)
        return self._ask_gap(now) if self.stash else None

    def digest(self) -> int:
        """Return the digest of the state. It is computed once per index."""
        if self.last_digest[0] != self.state.index:
            self.last_digest = (self.state.index, digest(self.state))
        return self.last_digest[1]

    def lead(self, counter: int, me: NodeId) -> None:
        """Record that the owner of this mirror became the leader, with the term `counter`. From
        then on it applies its own events (`moved`)."""
        self._follow(counter, me)
        self.followers = 0
        self.live = self.in_step = True

    def moved(self, event: Event) -> None:
        """Apply the next event of a log that the owner of this mirror writes itself."""
        self.state = apply(self.state, event)

    def _is_older(self, counter: int, holder: NodeId, now: float) -> bool:
        """Return whether to ignore a leader because of its term. A lower term is ignored, unless
        the leader of the current term was silent for `FORGOTTEN_S` and was not elected. An equal
        term of another leader is ignored while ours lives: the two leaders decide which of them
        yields."""
        if counter == self.counter and self.holder not in (None, holder):
            return now - self.heard_at < LAPSED_S
        forgotten = not self.voted and now - self.heard_at >= FORGOTTEN_S
        return counter < self.counter and not forgotten

    def _is_lighter(self, beat: TermHeartbeat, now: float) -> bool:
        """Return whether to ignore this leader, because fewer candidates follow it than our leader.
        False if our leader handed its term over to it."""
        given = beat.handed
        if given is not None and (given.counter, given.holder) == (self.counter, self.holder):
            return False
        other = self.holder not in (None, beat.holder) and now - self.heard_at < DOUBTED_S
        return other and beat.followers < self.followers

    def _follow(self, counter: int, holder: NodeId | None) -> None:
        """Follow a higher term: drop the stored events of another log. Whether the new leader's log
        contains our last event is then unknown."""
        self.counter, self.holder = counter, holder
        self.in_step, self.asked_at = False, None
        self.stash.clear()

    def _question(self, upto: int) -> Ask:
        """Return the question to a leader whose log may differ from ours."""
        state = self.state
        behind = upto - state.index
        if not self.live or behind < 0 or behind > MAX_REPLAYED:
            return AskSnapshot()
        first = state.index + 1
        last = max(first, min(upto, first + MAX_ASKED - 1))
        return AskEvents(first=first, last=last, after_term=state.term, after_holder=state.holder)

    def _stash(self, event: Event) -> None:
        if len(self.stash) >= MAX_STASH:
            self.stash.clear()
            self.live = False
        stashed = self.stash.get(event.index)
        if stashed is None or stashed.term < event.term:
            self.stash[event.index] = event

    def _drain(self) -> None:
        """Apply the stored events that directly follow the state."""
        while (event := self.stash.pop(self.state.index + 1, None)) is not None:
            self.state = apply(self.state, event)
            if self.moves is not None:
                self.moves.append((event, self.state))

    def _ask_gap(self, now: float, upto: int | None = None) -> Ask | None:
        if not self.live or (upto or 0) - self.state.index > MAX_REPLAYED:
            return self._ask(AskSnapshot(), now)
        first = self.state.index + 1
        last = min(self.stash) - 1 if self.stash else (upto or first)
        return self._ask(AskEvents(first=first, last=min(last, first + MAX_ASKED - 1)), now)

    def _ask(self, ask: Ask, now: float) -> Ask | None:
        """Return the question; None while another question waits for its answer."""
        if self.asked_at is not None and now - self.asked_at < RETRY_S:
            return None
        self.asked_at = now
        return ask


def _differ(first: NodeId | None, second: NodeId | None) -> bool:
    """Return whether both leaders are known and differ."""
    return first is not None and second is not None and first != second
