"""Talks to the event loop: the streams of this process that clients may read again.

The memory of all their events together is limited. Above the limit, streams that no client reads
are ended: first the complete ones, then the others in the order in which their clients left. If
that is not enough, the limit of each remaining stream is lowered to `LEAST_BYTES`.

A client may reconnect to another HTTP process of the node. That process then polls this one for
events. If it has not polled for `SILENT_S`, its client counts as gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.links.reactor import Reactor
from bus.wire.calls.processes import ReadStream, StreamRead
from bus.wire.ids import RequestId
from gateway.exchange.streams.event_buffer import EventsGone
from gateway.exchange.streams.lasting_stream import LastingStream
from gateway.exchange.streams.open_stream import OpenStream, StreamReader
from gateway.exchange.streams.stream_journal import StreamFolder

LIMIT_BYTES = 64 << 20
"""Memory for the events of all streams of a process."""
STREAM_BYTES = 4 << 20
"""Memory for the events of one stream."""
LEAST_BYTES = 64 << 10
"""Memory for the events of one stream while the memory of all streams together is over its
limit."""
SILENT_S = 2.0


@dataclass(slots=True)
class _Remote:
    stream: OpenStream
    reader: StreamReader
    polled_at: float


class OpenStreams:
    """The streams of one process, by request. `files` has the journals of the streams, which
    outlive the process. `held_bytes`: memory of all events."""

    def __init__(
        self, reactor: Reactor, files: StreamFolder, *, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self.files = files
        self.held_bytes = 0
        self._reactor = reactor
        self._limit_bytes = limit_bytes
        self._streams: dict[RequestId, OpenStream] = {}
        self._remote: dict[str, _Remote] = {}
        self._timer = reactor.every(SILENT_S / 2, self._forget_silent)

    def open(self, request: RequestId, lasting: LastingStream) -> OpenStream:
        """Return a new stream."""
        stream = self._streams[request] = OpenStream(
            request,
            lasting=lasting,
            reactor=self._reactor,
            has_room=self._has_room,
            on_gone=self._forget,
        )
        return stream

    def of(self, request: RequestId, owner: str) -> OpenStream | None:
        """Return the stream of a request. None if this process does not have it, or if it belongs
        to another owner."""
        stream = self._streams.get(request)
        return stream if stream is not None and stream.lasting.owner == owner else None

    def leave(self) -> None:
        """End the streams of this process, because the process is ending. Other processes may
        continue them."""
        for stream in list(self._streams.values()):
            stream.lasting.leave()
            stream.end()

    def close(self) -> None:
        """End all streams of this process, and wait until their files are written."""
        self._timer.cancel()
        self.leave()
        self.files.close()

    def read_for(self, call: ReadStream) -> StreamRead:
        """Return the next events of a stream to another HTTP process. Each value of `reader` is one
        client of that process."""
        remote = self._remote.get(call.reader)
        if remote is None:
            stream = self.of(call.request, call.owner)
            if stream is None:
                return StreamRead()
            try:
                reader = stream.attach(call.after)
            except EventsGone as gone:
                return StreamRead(is_open=True, first=gone.first)
            remote = self._remote[call.reader] = _Remote(stream, reader, 0.0)
        remote.polled_at = self._reactor.now()
        stream, reader = remote.stream, remote.reader
        if not stream.is_read_by(reader):
            del self._remote[call.reader]
            return StreamRead() if stream.is_gone else StreamRead(is_open=True, is_taken=True)
        events = stream.take(reader)
        is_over = not events and stream.is_finished(reader)
        if is_over:
            del self._remote[call.reader]
            stream.leave(reader)
        return StreamRead(is_open=True, events=events, last=reader.next - 1, is_over=is_over)

    # --- below -------------------------------------------------------------------------------

    def _has_room(self, stream: OpenStream) -> bool:
        """Make room, and return whether a stream may add more events."""
        self._count(stream)
        if self.held_bytes > self._limit_bytes:
            self._make_room()
        is_full = self.held_bytes > self._limit_bytes
        has_room = stream.buffer.shrink(LEAST_BYTES if is_full else STREAM_BYTES)
        self._count(stream)
        return has_room

    def _make_room(self) -> None:
        """End streams that no client reads, until the rest fits."""
        left = [each for each in self._streams.values() if each.left_at is not None]
        for stream in sorted(left, key=lambda each: (not each.is_done, each.left_at)):
            if self.held_bytes <= self._limit_bytes:
                return
            stream.end()

    def _count(self, stream: OpenStream) -> None:
        held_bytes = stream.buffer.held_bytes
        self.held_bytes += held_bytes - stream.counted_bytes
        stream.counted_bytes = held_bytes

    def _forget(self, stream: OpenStream) -> None:
        self._count(stream)
        if self._streams.get(stream.request) is stream:
            del self._streams[stream.request]

    def _forget_silent(self) -> None:
        now = self._reactor.now()
        for name, remote in list(self._remote.items()):
            if now - remote.polled_at >= SILENT_S:
                del self._remote[name]
                remote.stream.leave(remote.reader)
