"""Following the log: events applied in order, a gap spotted, a snapshot asked for.

Pure (ZeroMQ guide, *Clone* pattern): `heard_*` take what arrived and return what to ask, if
anything. Order promised: `state` moves only along the holder's index order, within one term or
to a higher one; an event of a lower term, or one seen before, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.ids import NodeId
from bus.messages.control import AskEvents, AskSnapshot, EventsFound, Snapshot, TermHeartbeat
from bus.messages.events import Event
from bus.state import ClusterState, apply, digest

MAX_STASH = 50_000
"""Events kept aside while a gap is open; beyond it a snapshot is cheaper."""
MAX_ASKED = 1_000
"""Events asked for at once."""
RETRY_S = 0.5
"""A question that had no answer is asked again after this long."""

Ask = AskSnapshot | AskEvents


@dataclass(slots=True)
class Mirror:
    """One copy of the state.

    `live` is False until a first snapshot was taken; `asked_at` is when the open question was
    asked, None when there is none; `stash` holds later events by index while a gap is open.
    """

    state: ClusterState = field(default_factory=ClusterState)
    live: bool = False
    holder: NodeId | None = None
    counter: int = 0
    asked_at: float | None = None
    stash: dict[int, Event] = field(default_factory=dict[int, Event])
    last_digest: tuple[int, int] = (-1, 0)

    def heard_event(self, event: Event, now: float) -> Ask | None:
        """An event from the wire: applied, stashed behind a gap, or ignored as old."""
        if event.term < self.state.term:
            return None
        if not self.live:
            self._stash(event)
            return self._ask(AskSnapshot(), now)
        if event.index <= self.state.index:
            return None
        self._stash(event)
        self._drain()
        if self.stash:
            return self._ask_gap(now)
        self.asked_at = None
        return None

    def heard_heartbeat(self, beat: TermHeartbeat, now: float) -> Ask | None:
        """A holder's heartbeat: a lost tail or a differing digest is noticed here."""
        if (beat.counter, beat.holder) < (self.counter, self.holder or ""):
            return None
        new_holder = (beat.counter, beat.holder) != (self.counter, self.holder)
        self.counter, self.holder = beat.counter, beat.holder
        if new_holder:
            self.asked_at = None
        if not self.live:
            return self._ask(AskSnapshot(), now)
        if beat.index < self.state.index and new_holder:
            return self._ask(AskSnapshot(), now)
        if beat.index > self.state.index:
            return self._ask_gap(now, upto=beat.index)
        if beat.index == self.state.index and beat.digest != self.digest():
            self.asked_at = None
            return self._ask(AskSnapshot(), now)
        return None

    def heard_snapshot(self, snapshot: Snapshot, now: float) -> Ask | None:
        """A snapshot replaces the state, then what was stashed beyond it is applied."""
        self.asked_at = None
        if snapshot.term < self.state.term:
            return None
        self.state = ClusterState.model_validate(snapshot.state)
        self.live = True
        for index in [i for i in self.stash if i <= self.state.index]:
            del self.stash[index]
        self._drain()
        return self._ask_gap(now) if self.stash else None

    def heard_found(self, found: EventsFound, now: float) -> Ask | None:
        """Events that were asked for; incomplete means they are gone: take a snapshot."""
        self.asked_at = None
        if not found.complete:
            return self._ask(AskSnapshot(), now)
        for event in found.events:
            if event.index > self.state.index:
                self._stash(event)
        self._drain()
        return self._ask_gap(now) if self.stash else None

    def due(self, now: float) -> Ask | None:
        """To be called now and then: repeats a question that was not answered in time."""
        if self.asked_at is None or now - self.asked_at < RETRY_S:
            return None
        self.asked_at = None
        if not self.live:
            return self._ask(AskSnapshot(), now)
        return self._ask_gap(now) if self.stash else None

    def digest(self) -> int:
        """Digest of the state, computed once per index."""
        if self.last_digest[0] != self.state.index:
            self.last_digest = (self.state.index, digest(self.state))
        return self.last_digest[1]

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

    def _ask_gap(self, now: float, upto: int | None = None) -> Ask | None:
        if not self.live:
            return self._ask(AskSnapshot(), now)
        if self.asked_at is not None and now - self.asked_at < RETRY_S:
            return None
        first = self.state.index + 1
        last = min(self.stash) - 1 if self.stash else (upto or first)
        return self._ask(AskEvents(first=first, last=min(last, first + MAX_ASKED - 1)), now)

    def _ask(self, ask: Ask, now: float) -> Ask | None:
        """One question at a time: None while another waits for its answer."""
        if self.asked_at is not None and now - self.asked_at < RETRY_S:
            return None
        self.asked_at = now
        return ask
