"""The numbered events of one stream that a client may read again.

Pure. Events are numbered from 0, in the order of the stream. A number never changes, and each event
carries its number as the `id` of server-sent events. Comments and pings are not events: they have
no number, and only a client that is reading at that moment gets them.

When the buffer exceeds its limit, it drops its oldest events, but only after they were sent to a
client. If that is not enough, the buffer is full, and its writer waits.
"""

from __future__ import annotations

from collections import deque

END = b"\n\n"
PING = b"event: ping\n"
"""The first bytes of a ping, an event that only keeps a connection open."""
EVENT_BYTES = 64
"""The estimated memory of an event in addition to its own bytes."""


class EventsGone(Exception):
    """The buffer no longer has the event with the requested number. `first` is the first event that
    it has."""

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.first = first


class EventBuffer:
    """The events of one stream.

    Invariants: `first` <= `sent` <= `end`; `held_bytes` is the sum over the events from `first` to
    `end` - 1. `sent`: the number after the last event that was sent to the present client, or if
    none is connected, to the latest one.
    """

    def __init__(self) -> None:
        self.first = self.end = self.sent = 0
        self.held_bytes = 0
        self._events: deque[bytes] = deque()

    def add(self, piece: bytes) -> bytes:
        """Number the events in a piece of a stream, and store them. Return the piece's comments and
        pings. A piece has only whole events."""
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
        """Return events from number `start` on, and the number after the last of them. The events
        have about `most_bytes` at most, but there is at least one. Raises EventsGone if event
        `start` was dropped."""
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
        """Note that a client reads from now on, and has not received the events from number `start`
        on. Raises EventsGone if event `start` was dropped."""
        if start < self.first:
            raise EventsGone(self.first)
        self.sent = min(start, self.end)

    def sent_to(self, end: int) -> None:
        """Note that the events before number `end` were sent to the client."""
        self.sent = min(max(self.sent, end), self.end)

    def shrink(self, limit_bytes: int) -> bool:
        """Drop sent events, oldest first, until the others fit into the limit. Return whether they
        fit."""
        while self.held_bytes > limit_bytes and self.first < self.sent:
            self.held_bytes -= len(self._events.popleft()) + EVENT_BYTES
            self.first += 1
        return self.held_bytes <= limit_bytes

    def clear(self) -> None:
        """Drop all events."""
        self._events.clear()
        self.first = self.sent = self.end
        self.held_bytes = 0
