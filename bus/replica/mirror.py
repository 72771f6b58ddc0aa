"""Following the log: events applied in order, a gap spotted, a snapshot asked for.

Pure (ZeroMQ guide, *Clone* pattern; Raft's consistency check): `heard_*` take what arrived and
return what to ask, if anything. Order promised: `state` moves only along one holder's index
order; what a lower term says, or what was seen before, changes nothing. A heartbeat alone says
who holds the term; a new holder's events are applied only once its log is known to hold our own
last event; otherwise its snapshot replaces what we have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.replica.state import ClusterState, apply, digest
from bus.wire.ids import NodeId
from bus.wire.messages.control import AskEvents, AskSnapshot, EventsFound, Snapshot, TermHeartbeat
from bus.wire.messages.events import Event

MAX_STASH = 50_000
"""Events kept aside while a gap is open; beyond it a snapshot is cheaper."""
MAX_ASKED = 1_000
"""Events asked for at once."""
MAX_REPLAYED = 5_000
"""Who is further behind than this takes a snapshot instead of the events."""
DOUBTED_S = 1.5
"""A holder that was heard within this is not left for another whom fewer follow."""
LAPSED_S = 2.0
"""A holder that was silent for so long is none."""
VOTED_FOR_S = 10.0
"""A holder by votes outranks one that claimed alone, whatever their counters, until it has been
silent for so long."""
FORGOTTEN_S = 10.0
"""A holder that claimed a higher term alone and has been silent for so long may have died, or lost
its disk, before anybody else heard of that term: then another's lower one is followed."""
RETRY_S = 0.5
"""A question that had no answer is asked again after this long."""

Ask = AskSnapshot | AskEvents
Move = tuple[Event | None, ClusterState]
"""An event and the state behind it; without an event, a state that replaced what was."""


@dataclass(slots=True)
class Mirror:
    """One copy of the state.

    `live` is False until a first snapshot was taken; (`counter`, `holder`) is the highest term
    heard of, `voted` says that a majority gave it, `in_step` that its log is known to hold our
    last event; so many `followers` its holder has. `heard_at` is when its heartbeat last came,
    `asked_at` when the open question was asked, None when there is none; `stash` holds later
    events by index while a gap is open.
    `moves`, where it is kept, gathers what moved the state, oldest first,
    until it is emptied.
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
        """Apply an event from the wire, stash it behind a gap, or ignore it as old; return what to
        ask the holder, if anything."""
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
        """Compare a holder's heartbeat with the state; return what to ask it after a lost tail or
        at a differing digest."""
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
            self.in_step = True  # our last event is of this very term, so ours is its log
        if not self.live or not self.in_step:
            return self._ask(self._question(beat.index), now)
        if beat.index > self.state.index:
            return self._ask_gap(now, upto=beat.index)
        if beat.index == self.state.index:
            self.asked_at, self.in_step = None, False
            return self._ask(AskSnapshot(), now)
        return None

    def heard_snapshot(self, snapshot: Snapshot, now: float) -> Ask | None:
        """Replace the state by a snapshot, then apply what was stashed beyond it; return what to
        ask about a gap, if there is one."""
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

    def heard_found(self, found: EventsFound, now: float) -> Ask | None:
        """Apply events that were asked for; incomplete means they are gone, or our own last event
        is not of that log: a snapshot is asked for."""
        if found.term is not None and found.term != self.counter:
            return None
        if _differ(found.holder, self.holder):
            return None
        self.asked_at = None
        if not found.complete:
            self.in_step = False
            return self._ask(AskSnapshot(), now)
        self.in_step = self.live
        for event in found.events:
            if event.index > self.state.index:
                self._stash(event)
        self._drain()
        return self._ask_gap(now) if self.stash else None

    def due(self, now: float) -> Ask | None:
        """Repeat a question that was not answered in time. To be called now and then."""
        if self.asked_at is None or now - self.asked_at < RETRY_S:
            return None
        self.asked_at = None
        if not self.live or not self.in_step:
            return self._ask(self._question(self.state.index + 1), now)
        return self._ask_gap(now) if self.stash else None

    def digest(self) -> int:
        """Return the digest of the state, computed once per index."""
        if self.last_digest[0] != self.state.index:
            self.last_digest = (self.state.index, digest(self.state))
        return self.last_digest[1]

    def lead(self, counter: int, me: NodeId) -> None:
        """Take our own log for the log: the keeper of this mirror holds the term itself."""
        self._follow(counter, me)
        self.followers = 0
        self.live = self.in_step = True

    def moved(self, event: Event) -> None:
        """Apply the next event of a log that the keeper of this mirror writes itself."""
        self.state = apply(self.state, event)

    def _is_older(self, counter: int, holder: NodeId, now: float) -> bool:
        """Return whether this is a lower term, unless the higher one has been forgotten; or another
        claim to the same counter while the holder that we follow lives: those two settle it."""
        if counter == self.counter and self.holder not in (None, holder):
            return now - self.heard_at < LAPSED_S
        forgotten = not self.voted and now - self.heard_at >= FORGOTTEN_S
        return counter < self.counter and not forgotten

    def _is_lighter(self, beat: TermHeartbeat, now: float) -> bool:
        """Return whether fewer follow this claim than the holder that we hear, and has not handed
        its term on to it: it gives way."""
        given = beat.handed
        if given is not None and (given.counter, given.holder) == (self.counter, self.holder):
            return False
        other = self.holder not in (None, beat.holder) and now - self.heard_at < DOUBTED_S
        return other and beat.followers < self.followers

    def _follow(self, counter: int, holder: NodeId | None) -> None:
        """Follow a higher term: drop what was stashed of another log, and doubt our own."""
        self.counter, self.holder = counter, holder
        self.in_step, self.asked_at = False, None
        self.stash.clear()

    def _question(self, upto: int) -> Ask:
        """Return what to ask a holder whose log is not known to be ours."""
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
        known = self.stash.get(event.index)
        if known is None or known.term < event.term:
            self.stash[event.index] = event

    def _drain(self) -> None:
        """Apply what follows the state without a gap."""
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
        """Return the question, None while another one waits for its answer."""
        if self.asked_at is not None and now - self.asked_at < RETRY_S:
            return None
        self.asked_at = now
        return ask


def _differ(one: NodeId | None, other: NodeId | None) -> bool:
    """Return whether two holders are known not to be the same."""
    return one is not None and other is not None and one != other
