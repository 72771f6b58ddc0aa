"""The numbered events of one stream that a client may read again.

Pure. Events are numbered from 0, in the order of the stream. A number never changes, and each event
carries its number as the `id` of server-sent events. Comments and pings are no events: they have no
number, and only the client that reads at that moment gets them.

The buffer forgets its first events once it exceeds its limit, but only events that a client was
sent. If that is not enough, it is full, and its writer waits.
"""

from __future__ import annotations

from collections import deque

END = b"\n\n"
PING = b"event: ping\n"
"""The first bytes of an event that only keeps a connection open."""
EVENT_BYTES = 64
"""Memory that an event needs beside its bytes."""


class EventsGone(Exception):
    """The events after the requested number are no longer held. `first` is the first that is."""

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.first = first


class EventBuffer:
    """The events of one stream.

    Invariants: `first` <= `sent` <= `end`; `held_bytes` is the sum over the events from `first` to
    `end` - 1. `sent`: the number after the last event that the present client was sent, or the
    last client if there is none.
    """

    def __init__(self) -> None:
        self.first = self.end = self.sent = 0
        self.held_bytes = 0
        self._events: deque[bytes] = deque()

    def add(self, piece: bytes) -> bytes:
        """Number the events in a piece of a stream, and hold them. Return the piece's comments and
        pings. A piece has whole events only."""
        aside = b""
        for event in piece.split(END):
            if not event:
                continue
            if event.startswith((b":", PING)):
                aside += event + END
                continue
            numbered = b"id: %d\n%b\n\n" % (self.end, event)
            self._events.append(numbered)
            self.end += 1
            self.held_bytes += len(numbered) + EVENT_BYTES
        return aside

    def read(self, start: int, most_bytes: int) -> tuple[bytes, int]:
        """Return events from number `start` on, at most about `most_bytes` but at least one, and
        the number after them. Raises EventsGone if the first of them is no longer held."""
        if start < self.first:
            raise EventsGone(self.first)
        pieces: list[bytes] = []
        size = 0
        while start < self.end and size < most_bytes:
            event = self._events[start - self.first]
            pieces.append(event)
            size += len(event)
            start += 1
        return b"".join(pieces), start

    def begin_at(self, start: int) -> None:
        """Note that the client that reads from now on has not been sent the events from number
        `start` on. Raises EventsGone if the first of them is no longer held."""
        if start < self.first:
            raise EventsGone(self.first)
        self.sent = min(start, self.end)

    def sent_to(self, end: int) -> None:
        """Note that a client was sent the events before number `end`."""
        self.sent = min(max(self.sent, end), self.end)

    def shrink(self, limit_bytes: int) -> bool:
        """Forget sent events, the first ones first, until the rest fits into the limit. Return
        whether it fits."""
        while self.held_bytes > limit_bytes and self.first < self.sent:
            self.held_bytes -= len(self._events.popleft()) + EVENT_BYTES
            self.first += 1
        return self.held_bytes <= limit_bytes

    def clear(self) -> None:
        """Forget all events."""
        self._events.clear()
        self.first = self.sent = self.end
        self.held_bytes = 0
