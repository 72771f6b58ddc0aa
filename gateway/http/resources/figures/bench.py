"""Talks to clients that measure the speed of a chat completion."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from falcon.asgi import Response

from bus.wire.ids import InstanceId
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.shapes import generation_stats
from gateway.http.resources.exchange import Again, GenerateResource
from gateway.http.running import RunningExchange
from gateway.service import HttpService


@dataclass(frozen=True)
class BenchResource(GenerateResource):
    """`POST /bench/chat/completions`."""

    async def _answer(self, running: RunningExchange, resp: Response, again: Again) -> None:
        """Answer in the dialect, with `generation_stats` added."""
        await super()._answer(running, resp, again)
        request = running.exchange.requests[0]
        if request.usage is None or resp.data is None:  # it was cancelled before a runner had it
            return
        first_at, began_at = request.first_at, running.asked.started_at
        stats = generation_stats(
            request.usage,
            ttft_s=None if first_at is None else first_at - began_at,
            peak_bytes=_peak_bytes(self.service, request.instance),
        )
        resp.data = json_bytes({**orjson.loads(resp.data), "generation_stats": stats})


def _peak_bytes(service: HttpService, instance: InstanceId | None) -> int | None:
    """Return the summed peak array memory of an instance's ranks, by their latest readings; None if
    a rank has reported none."""
    held = None if instance is None else service.bus.state.instances.get(instance)
    if held is None:
        return None
    readings = service.readings.ranks({held.instance: held}, service.reactor.now())
    if len({reading.rank for reading in readings}) < len(held.shards):
        return None
    return sum(reading.peak_bytes for reading in readings)
