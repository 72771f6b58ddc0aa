"""Talks to clients about what the cluster does now: as JSON, or as a stream of the same."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from falcon.asgi import Request, Response

from gateway.dialects import sse
from gateway.http.middleware import Resource
from gateway.http.resources.figures.streaming import Gone, answer_streamed


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
        watch = self.service.watch

        async def frames(_gone: Gone) -> AsyncGenerator[bytes]:
            """Yield each snapshot as an event."""
            async with aclosing(watch.read()) as snapshots:
                async for made in snapshots:
                    yield sse.named_frame("snapshot", made)

        answer_streamed(req, resp, watch, frames)
