"""Talks to clients that read endless streams, until they hang up or this process ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from falcon.asgi import Request, Response

from gateway.dialects import sse
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.exchange import hung_up
from gateway.http.scope import Receive, scope_of
from gateway.view.watch import EventFeed, FeedFull, SnapshotFeed

Gone = asyncio.Future[None]
Frames = Callable[[Gone], AsyncGenerator[bytes]]


def answer_streamed(
    req: Request, resp: Response, feed: SnapshotFeed | EventFeed, frames: Frames
) -> None:
    """Answer with the stream that `frames` yields. `frames` gets a future that is done when the
    client has disconnected. Raises HttpFaultRaised (429) at the feed's limit of readers."""
    try:
        feed.check_room()
    except FeedFull as full:
        fault = HttpFault(429, "queue_full", str(full), retry_after_s=5.0)
        raise HttpFaultRaised(fault) from None
    resp.content_type = sse.CONTENT_TYPE
    resp.set_headers(sse.HEADERS)
    resp.stream = _streamed(scope_of(req).receive, frames)


def answer_each_snapshot(
    req: Request, resp: Response, feed: SnapshotFeed, event: str, made: Callable[[bytes], bytes]
) -> None:
    """Answer with an event of that name for each snapshot; `made` renders its data. Raises
    HttpFaultRaised (429) at the feed's limit of readers."""

    async def frames(_gone: Gone) -> AsyncGenerator[bytes]:
        async with aclosing(feed.read()) as snapshots:
            async for snapshot in snapshots:
                yield sse.named_frame(event, made(snapshot))

    answer_streamed(req, resp, feed, frames)


async def _streamed(receive: Receive, frames: Frames) -> AsyncGenerator[bytes]:
    gone = asyncio.ensure_future(hung_up(receive))
    try:
        async with aclosing(frames(gone)) as made:
            async for frame in made:
                if gone.done():
                    return
                yield frame
        if not gone.done():
            yield sse.comment("this gateway is shutting down")
    finally:
        gone.cancel()
