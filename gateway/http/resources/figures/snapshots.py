"""Talks to clients about what the cluster does now: as JSON, or as a stream of the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from falcon.asgi import Request, Response

from gateway.cluster.watch import FeedFull
from gateway.dialects import sse
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.middleware import Receive, Resource, receive_of
from gateway.service import HttpService


class MetricsSnapshot(Resource):
    """`GET /metrics/snapshot`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with what the cluster does now, at most a second old."""
        resp.data = await self.service.watch.latest()
        resp.set_header("cache-control", "no-store")


class MetricsStream(Resource):
    """`GET /metrics/stream`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Stream a snapshot each second, each an event `snapshot`. 429 where too many read."""
        service = self.service
        try:
            service.watch.check_room()
        except FeedFull as full:
            fault = HttpFault(429, "queue_full", str(full), retry_after_s=5.0)
            raise HttpFaultRaised(fault) from None
        resp.content_type = sse.CONTENT_TYPE
        resp.set_headers(sse.HEADERS)
        resp.stream = _streamed(service, receive_of(req))


async def _streamed(service: HttpService, receive: Receive) -> AsyncGenerator[bytes]:
    """Yield events until the client hangs up or this process is told to end."""
    gone = asyncio.ensure_future(_gone(receive))
    try:
        async with aclosing(service.watch.read()) as snapshots:
            async for made in snapshots:
                if gone.done():
                    return
                yield sse.named_frame("snapshot", made)
        yield sse.comment("this gateway is shutting down")
    finally:
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
