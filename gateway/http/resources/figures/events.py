"""Talks to clients about the events of the cluster's log: the latest events as JSON, or all new
events as a stream.

Any HTTP process can answer for the whole cluster, from the log that it has applied. If a stream
breaks off, the reader can resume after the last id that it received, at any process of any node.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from falcon.asgi import Request, Response
from typing_extensions import TypedDict

from gateway.dialects import sse
from gateway.dialects.body import bad_field
from gateway.dialects.encode import json_bytes
from gateway.http.middleware import Resource
from gateway.http.query import is_yes, number_of
from gateway.http.resources.figures.streaming import Gone, answer_streamed
from gateway.view.watch import Entry, EventTold, LogPlace

LIMIT, MOST = 100, 1000
_PLACE = re.compile(r"(?:([0-9]{1,15}):)?([0-9]{1,15})")
_NO_PLACE = "must be the index of an event (90) or its id in a stream (term:index, such as 3:90)"


class EventsAnswer(TypedDict):
    """Events of the log; `last` is the position after which a reader continues, null if none is
    known."""

    node: str
    last: str | None
    events: list[EventTold]


class LogEvents(Resource):
    """`GET /events[?limit=&after=&stream=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the latest events of the log, or with those after a position. Streams if the
        client requests server-sent events. 429 at the limit of streams."""
        limit = round(number_of(req, "limit", LIMIT, least=0, most=MOST))
        accept = (req.get_header("accept") or "").casefold()
        streams = "text/event-stream" in accept and "application/json" not in accept
        resp.append_header("vary", "accept")
        if is_yes(req, "stream", default=streams):
            self._stream(req, resp, limit)
            return
        after = _place(req.get_param("after"), "after")
        entries = await self.watch.events.listed(after, limit)
        last = entries[-1].place if entries else after or self.watch.events.last
        head = {"node": self.watch.options.node, "last": None if last is None else str(last)}
        joined = b",".join(entry.data for entry in entries)
        resp.data = json_bytes(head)[:-1] + b',"events":[' + joined + b"]}"
        resp.set_header("cache-control", "no-store")

    def _stream(self, req: Request, resp: Response, limit: int) -> None:
        """Stream events. A reader that resumes sends its last id in a header."""
        events = self.watch.events
        after = _place(req.get_header("last-event-id") or None, "Last-Event-ID")
        if after is None:
            after = _place(req.get_param("after"), "after")

        async def frames(gone: Gone) -> AsyncGenerator[bytes]:
            """Yield new events, with comments between them that keep the connection alive."""
            yield sse.KEEP_ALIVE
            async with aclosing(events.read(after, limit, gone)) as batches:
                async for entries in batches:
                    yield b"".join(map(_frame, entries)) or sse.KEEP_ALIVE

        answer_streamed(req, resp, events, frames)


def _frame(entry: Entry) -> bytes:
    name = "gap" if entry.kind == "gap" else "event"
    return sse.placed_frame(str(entry.place), name, entry.data)


def _place(text: str | None, name: str) -> LogPlace | None:
    """Return the log position that a text states. Raises BadRequest if it states none."""
    if text is None:
        return None
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        raise bad_field(name, _NO_PLACE)
    term, index = match.groups()
    return LogPlace(None if term is None else int(term), int(index))
