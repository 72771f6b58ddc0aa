"""The recent events of the log, for those who missed some.

Pure. Bounded: what has fallen out of it has to be replaced by a snapshot. Events are kept by
index (a look-up per event; scanning a queue made catching up quadratic, as measured).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.messages.control import AskEvents, EventsFound
from bus.messages.events import Event

MAX_KEPT = 20_000
MAX_FOUND = 1_000


@dataclass(slots=True)
class History:
    """Invariant: `events` holds exactly the indexes first..last; empty when first > last."""

    limit: int = MAX_KEPT
    events: dict[int, Event] = field(default_factory=dict[int, Event])
    first: int = 1
    last: int = 0

    def keep(self, event: Event) -> None:
        """Add the newest event. One that does not follow the last begins a new history."""
        if event.index != self.last + 1:
            self.events.clear()
            self.first = event.index
        self.events[event.index] = event
        self.last = event.index
        while len(self.events) > self.limit:
            del self.events[self.first]
            self.first += 1

    def find(self, ask: AskEvents) -> EventsFound:
        """What was asked for, at most 1,000 at once; incomplete when the first is not kept.

        What lies beyond the last event does not exist yet and is not missed.
        """
        upto = min(ask.last, self.last, ask.first + MAX_FOUND - 1)
        if ask.first <= self.last and ask.first < self.first:
            return EventsFound(events=(), complete=False)
        found = tuple(self.events[index] for index in range(ask.first, upto + 1))
        return EventsFound(events=found, complete=ask.first <= self.last + 1)
