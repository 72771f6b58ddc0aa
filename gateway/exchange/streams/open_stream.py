"""Talks to the event loop: one stream that continues when its client's connection breaks.

An asyncio task (the pump) takes the rendered pieces of the stream and stores their numbered events
in the buffer. At most one connection reads at a time: a new one takes over, and the earlier one is
closed. So a client can reconnect before its broken connection has timed out. While no client reads,
the model continues until the buffer is full.

The stream ends for good some time after its client has left, or after its last event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from bus.links.reactor import Reactor, Timer
from bus.wire.ids import RequestId
from gateway.dialects import sse
from gateway.exchange.streams.event_buffer import EventBuffer
from gateway.exchange.streams.lasting_stream import LastingStream

PIECE_BYTES = 64 << 10
"""Maximum size of one write to a client that reads buffered events, approximately."""
TAKEN_OVER_COMMENT = sse.comment("another client reads this stream now")


@dataclass(slots=True)
class StreamReader:
    """A connection that reads a stream. `next`: the number of the event that it gets next. `aside`:
    comments and pings to send to it. `changed` is set if there may be something to send."""

    next: int
    aside: bytes = b""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class OpenStream:
    """A stream of this process. `is_done`: its last event is in the buffer. `is_gone`: it has ended
    for good and cannot be read any more. `left_at`: since when no client reads; None while one
    does. `counted_bytes`: the memory of its events, as counted for all streams."""

    def __init__(
        self,
        request: RequestId,
        *,
        lasting: LastingStream,
        reactor: Reactor,
        has_room: Callable[[OpenStream], bool],
        on_gone: Callable[[OpenStream], None],
    ) -> None:
        self.request = request
        self.lasting = lasting
        self.counted_bytes = 0
        self.buffer = EventBuffer()
        self.is_done = self.is_gone = False
        self.left_at: float | None = reactor.now()
        self._reactor = reactor
        self._has_room = has_room
        self._on_gone = on_gone
        self._reader: StreamReader | None = None
        self._room = asyncio.Event()
        self._abandon: Callable[[], None] = _nothing
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None

    # --- its pump ----------------------------------------------------------------------------

    def begin(self, pieces: AsyncGenerator[bytes], abandon: Callable[[], None]) -> None:
        """Start to move the stream's bytes (`pieces`) into the buffer. `abandon` cancels the
        request, which ends `pieces`."""
        self._abandon = abandon
        self._task = asyncio.ensure_future(self._pump(pieces))

    async def _pump(self, pieces: AsyncGenerator[bytes]) -> None:
        try:
            async for piece in pieces:
                aside = b"" if self.is_gone else self.buffer.add(piece)
                if self._reader is not None:
                    self._reader.aside += aside
                self._wake()
                while not self.is_gone and not self._has_room(self):
                    self._room.clear()
                    await self._room.wait()
        finally:
            self.is_done = True
            self._wake()
            if not self.is_gone:
                self._wait_for_client()

    # --- its clients -------------------------------------------------------------------------

    def attach(self, after: int) -> StreamReader:
        """Let a client read the events after number `after` (-1: all events). An earlier reader is
        disconnected. Raises EventsGone."""
        self.buffer.begin_at(after + 1)
        earlier, self._reader = self._reader, StreamReader(after + 1)
        self.left_at = None
        if earlier is not None:
            earlier.changed.set()
        return self._reader

    def leave(self, reader: StreamReader) -> None:
        """Note that this reader has disconnected. Has no effect if another reader took over."""
        if reader is self._reader:
            self._reader = None
            reader.changed.set()
            self.left_at = self._reactor.now()
            if not self.is_done:
                self._wait_for_client()
            self._room.set()

    def is_read_by(self, reader: StreamReader) -> bool:
        """Return whether this reader still reads: it has not left, and no other one took over."""
        return reader is self._reader and not self.is_gone

    def take(self, reader: StreamReader) -> bytes:
        """Return the next events for a reader, with its comments; empty if there are none. The
        events of the previous call count as sent."""
        start = reader.next
        self.buffer.sent_to(start)
        self._room.set()
        aside, reader.aside = reader.aside, b""
        if start >= self.buffer.end:
            return aside
        events, reader.next = self.buffer.read(start, PIECE_BYTES)
        return events + aside

    def is_finished(self, reader: StreamReader) -> bool:
        """Return whether a reader has received the last event."""
        return self.is_gone or (self.is_done and reader.next >= self.buffer.end)

    async def follow(self, reader: StreamReader) -> AsyncGenerator[bytes]:
        """Yield the events for a reader until the last one, or until another reader takes over."""
        try:
            while self.is_read_by(reader):
                reader.changed.clear()
                if piece := self.take(reader):
                    yield piece
                elif self.is_finished(reader):
                    return
                else:
                    await reader.changed.wait()
            if self._reader is not None:
                yield TAKEN_OVER_COMMENT
        finally:
            self.leave(reader)

    # --- its end -----------------------------------------------------------------------------

    def end(self) -> None:
        """Cancel the answer if it is not complete, delete the journal and drop the events."""
        if self.is_gone:
            return
        self.is_gone = True
        if self._timer is not None:
            self._timer.cancel()
        self._abandon()
        self.lasting.remove()
        self.buffer.clear()
        self._wake()
        self._room.set()
        self._on_gone(self)

    def _wait_for_client(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.later(self.lasting.wait_s, self._expire)

    def _expire(self) -> None:
        if self._reader is None:
            self.end()
        else:  # a client came back, or still reads the last events
            self._wait_for_client()

    def _wake(self) -> None:
        if self._reader is not None:
            self._reader.changed.set()


def _nothing() -> None:
    pass
