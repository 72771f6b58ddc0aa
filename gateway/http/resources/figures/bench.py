"""Talks to clients that measure the speed of a chat completion."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from falcon.asgi import Request, Response

from bus.wire.ids import InstanceId
from gateway.cluster import Cluster
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.shapes import generation_stats
from gateway.exchange import Flow
from gateway.http.resources.exchange import ExchangeResource


@dataclass(frozen=True)
class BenchResource(ExchangeResource):
    """`POST /bench/chat/completions`."""

    async def on_post(self, req: Request, resp: Response) -> Flow:
        """Answer in the dialect, with `generation_stats` added."""
        flow = await super().on_post(req, resp)
        if flow.running is None or flow.running.exchange is None:
            return flow
        request = flow.exchange.requests[0]
        if request.usage is None or resp.data is None:  # it was cancelled before a runner had it
            return flow
        first_at, began_at = request.first_at, flow.head.came_at
        stats = generation_stats(
            request.usage,
            ttft_s=None if first_at is None else first_at - began_at,
            peak_bytes=_peak_bytes(self.cluster, request.instance),
        )
        resp.data = json_bytes({**orjson.loads(resp.data), "generation_stats": stats})
        return flow


def _peak_bytes(cluster: Cluster, instance: InstanceId | None) -> int | None:
    """Return the summed peak array memory of an instance's ranks, by their latest readings; None if
    a rank has reported none."""
    held = None if instance is None else cluster.bus.state.instances.get(instance)
    if held is None:
        return None
    readings = cluster.readings.ranks({held.instance: held}, cluster.reactor.now())
    if len({reading.rank for reading in readings}) < len(held.shards):
        return None
    return sum(reading.peak_bytes for reading in readings)
