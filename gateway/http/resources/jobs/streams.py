"""Talks to clients about streams that outlive their connections (`x_reattach_s`, decision 0101):
sends a client the events that it does not have yet.

One HTTP process makes and stores the events of a stream. If that is another process of this node,
this process polls it for events. If that process has died, this process continues the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial

from falcon.asgi import Request, Response

from bus.calls.table import READ_STREAM
from bus.process.identity import new_name
from bus.wire.calls.processes import ReadStream, StreamRead
from bus.wire.errors import OwnerSilent
from bus.wire.ids import RequestId, owner_of
from gateway.cluster import Cluster
from gateway.dialects import sse
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.exchange import TAKEN_OVER_COMMENT, ClientWatch, EventsGone, OpenStream, Parts
from gateway.http.callers import owner_of_kept
from gateway.http.middleware import Resource
from gateway.http.resources.jobs.found import starting_after
from gateway.http.resources.jobs.restoring import restored
from gateway.http.scope import scope_of

LOOK_S = 0.02
"""How often another process is asked for new events."""
SILENT_S, AGAIN_S = 3.0, 0.1
"""How long to look for the process that serves a stream, and the time between two looks."""
LOST = "try again: if that process has died, another one continues the stream"
QUIET_S = 10.0


@dataclass(frozen=True)
class StreamEvents(Resource):
    """`GET /v1/streams/{id}`: the events of a stream after `Last-Event-ID`, past and future."""

    async def on_get(self, req: Request, resp: Response, stream_id: str) -> None:
        """Send the events. 404 if this key has no such stream on this node, or if the next event is
        no longer held."""
        pieces = await stream_of(self.parts, req, stream_id, _last_event_id(req))
        if pieces is None:
            raise HttpFaultRaised(_no_stream(self.cluster, stream_id))
        send_stream(req, resp, stream_id, pieces)


def send_stream(
    req: Request, resp: Response, stream_id: str, pieces: AsyncGenerator[bytes]
) -> None:
    """Answer with the events of a stream."""
    resp.set_header("x-request-id", stream_id)
    resp.content_type = sse.CONTENT_TYPE
    resp.set_headers(sse.HEADERS)
    resp.stream = pieces


async def stream_of(
    parts: Parts, req: Request, stream_id: str, after: int
) -> AsyncGenerator[bytes] | None:
    """Return the events of a stream of this client after number `after`; None if it has no such
    stream on this node. Raises HttpFaultRaised, and OwnerSilent if the process that serves it does
    not answer."""
    owner = await owner_of_kept(req, parts.options)
    return await StreamClient(parts, req, request_id_of(stream_id), owner).events(after)


class StreamClient:
    """One connection of a client that reads a stream of this owner."""

    def __init__(self, parts: Parts, req: Request, request: RequestId, owner: str) -> None:
        self._parts = parts
        self._request = request
        self._owner = owner
        self._is_gone = False
        self._watch = ClientWatch(scope_of(req).receive)
        self._at_end = scope_of(req).at_end
        self._at_end.append(self._watch.leave)

    async def events(self, after: int) -> AsyncGenerator[bytes] | None:
        """Return the events after number `after`; None if the owner has no such stream on this
        node. Raises HttpFaultRaised, and OwnerSilent if the process that serves it is silent."""
        parts, owner = self._parts, self._owner
        give_up_at = parts.reactor.now() + SILENT_S
        while True:  # the process may die just now, or another one may be taking the stream over
            stream = await self._here()
            if stream is not None:
                return self._followed(stream, after)
            near = await self._nearby(after)
            if near is not None or not await parts.streams.files.is_held(self._request, owner):
                return near
            if parts.reactor.now() >= give_up_at:
                raise OwnerSilent("the HTTP process that serves this stream", SILENT_S, LOST)
            await asyncio.sleep(AGAIN_S)

    async def _here(self) -> OpenStream | None:
        """Return the stream if this process serves it, or can take it over."""
        stream = self._parts.streams.of(self._request, self._owner)
        if stream is not None:
            return stream
        return await restored(self._parts, self._request, self._owner)

    def _followed(self, stream: OpenStream, after: int) -> AsyncGenerator[bytes]:
        """Return the events of a stream of this process. Raises HttpFaultRaised."""
        try:
            reader = stream.attach(after)
        except EventsGone as gone:
            raise HttpFaultRaised(_events_gone(gone.first)) from gone
        leave = partial(stream.leave, reader)
        self._watch.on_gone(leave)
        self._at_end.append(leave)
        return stream.follow(reader)

    async def _nearby(self, after: int) -> AsyncGenerator[bytes] | None:
        """Return the events of a stream of another process of this node; None if none has it.
        Raises HttpFaultRaised."""
        near, processes = self._parts.cluster.near, self._parts.options.processes
        if processes < 2:
            return None
        call = ReadStream(
            owner=self._owner, request=self._request, reader=new_name("read"), after=after
        )
        replies = await near.ask_each(processes, READ_STREAM, call)
        for number, reply in replies.items():
            if reply.first is not None:
                raise HttpFaultRaised(_events_gone(reply.first))
            if reply.is_open:
                return self._polled(call, number, reply)
        return None

    async def _polled(
        self, call: ReadStream, number: int, reply: StreamRead | None
    ) -> AsyncGenerator[bytes]:
        """Yield the events of a stream of process `number`. If that process dies, continue the
        stream here."""
        now = self._parts.reactor.now
        quiet_since = now()
        self._watch.on_gone(self._note_gone)
        while not self._is_gone:
            if reply is None or not reply.is_open:
                break
            if reply.events:
                call, quiet_since = call.model_copy(update={"after": reply.last}), now()
                yield reply.events
            elif reply.is_over:
                return
            elif reply.is_taken:
                yield TAKEN_OVER_COMMENT
                return
            elif now() - quiet_since >= QUIET_S:
                quiet_since = now()
                yield sse.KEEP_ALIVE
            else:
                await asyncio.sleep(LOOK_S)
            reply = await self._parts.cluster.near.ask(number, READ_STREAM, call)
        give_up_at = now() + SILENT_S
        while not self._is_gone and now() < give_up_at:
            stream = await self._here()
            if stream is not None:
                async for piece in self._followed(stream, call.after):
                    yield piece
                return
            await asyncio.sleep(AGAIN_S)

    def _note_gone(self) -> None:
        self._is_gone = True


def _last_event_id(req: Request) -> int:
    """Return the number of the last event that a client has; -1 if it has none. Raises
    HttpFaultRaised (400)."""
    text = req.get_header("last-event-id")
    if text is None:
        return starting_after(req)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        message = f"Last-Event-ID must be the id of an event, a whole number; got {text[:40]!r}"
        raise HttpFaultRaised(HttpFault(400, "invalid_value", message, field="Last-Event-ID"))
    return int(text)


def _no_stream(cluster: Cluster, stream_id: str) -> HttpFault:
    owner = owner_of(request_id_of(stream_id))
    node = None if owner is None else cluster.standing(owner[0])
    if owner is not None and node is not None and owner[0] != cluster.options.node:
        text = f"stream '{stream_id[:80]}' was requested from node {node.name}; read it there"
        return HttpFault(404, "stream_not_found", text)
    text = (
        f"no stream '{stream_id[:80]}' can be read with this API key on this node; it was not "
        "requested with x_reattach_s, or that time has passed"
    )
    return HttpFault(404, "stream_not_found", text)


def _events_gone(first: int) -> HttpFault:
    text = f"the next event of this stream is no longer stored; the first stored event is {first}"
    return HttpFault(404, "events_gone", text)
