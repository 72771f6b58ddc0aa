"""Talks to clients that measure: a chat completion, and how fast it was."""

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
        """Answer whole, as its dialect has it, with how fast that was behind the rest."""
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
    """Return the most that the arrays of an instance's ranks took, together, as they last told;
    None where one has told nothing."""
    held = None if instance is None else service.bus.state.instances.get(instance)
    if held is None:
        return None
    told = service.readings.ranks({held.instance: held}, service.reactor.now())
    if len({one.rank for one in told}) < len(held.shards):
        return None
    return sum(one.peak_bytes for one in told)
