"""Talks to clients about memory: reserved and measured bytes of every node, once or as a stream."""

from __future__ import annotations

from falcon.asgi import Request, Response

from gateway.dialects.encode import json_bytes
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.figures.streaming import answer_each_snapshot
from gateway.view.watch import MemoryAnswer, memory_of


class Memory(Resource):
    """`GET /memory`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the memory of every node and of each rank on it."""
        answer_json(resp, self.read_memory())

    def read_memory(self) -> MemoryAnswer:
        """Return the memory of all nodes, for JSON."""
        cluster = self.cluster
        return memory_of(cluster.bus.state, cluster.readings, cluster.reactor.now())


class LiveMemory(Memory):
    """`GET /memory/live`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Stream the same figures each second, as events `memory`. 429 at the limit of readers."""
        answer_each_snapshot(
            req, resp, self.watch.snapshots, "memory", lambda _: json_bytes(self.read_memory())
        )
