"""Talks to clients about memory: what is promised and measured on every node, once or streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from falcon.asgi import Request, Response

from gateway.cluster.watch import memory_of
from gateway.dialects import sse
from gateway.dialects.encode import json_bytes
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.figures.streaming import Gone, answer_streamed


class Memory(Resource):
    """`GET /memory`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with every node's memory, and that of each rank on it."""
        answer_json(resp, self.told())

    def told(self) -> dict[str, Any]:
        """Return the memory of all nodes, for JSON."""
        service = self.service
        return memory_of(service.bus.state, service.readings, service.reactor.now())


class LiveMemory(Memory):
    """`GET /memory/live`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Stream the same each second, each an event `memory`. 429 where too many read."""
        watch = self.service.watch

        async def frames(_gone: Gone) -> AsyncGenerator[bytes]:
            """Yield the memory as an event whenever a snapshot is due."""
            async with aclosing(watch.read()) as snapshots:
                async for _ in snapshots:
                    yield sse.named_frame("memory", json_bytes(self.told()))

        answer_streamed(req, resp, watch, frames)
