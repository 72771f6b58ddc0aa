"""Talks to the leader: loads and unloads models at a client's request, and keeps them loaded.

An Ollama client loads a model with an empty request, and unloads it with an empty request that has
`keep_alive: 0`. A request to load waits like any other request for the model. Unloading lets open
requests finish first, and has no effect on pinned models and instances.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from bus.wire.instances import DRAIN_S
from bus.wire.messages.commands import DeleteInstance, PlaceModel
from gateway.dialects.dialect import Dialect, Parsed
from gateway.exchange.flow import Flow
from gateway.exchange.parts import Parts


async def load_or_unload(parts: Parts, flow: Flow) -> Flow:
    """Load or unload the model of an empty request, and answer."""
    parsed, dialect = flow.parsed, flow.head.dialect
    load_s = await _moved(parts, flow)
    if parsed.stream:
        renderer = cast(Dialect, dialect).stream(parsed, load_s=load_s)
        flow.http.reply.data = renderer.open() + renderer.close()
    else:
        flow.http.reply.data = dialect.render_whole(parsed, (), load_s=load_s)
    return replace(flow, is_over=True)


async def stay_warm(parts: Parts, flow: Flow) -> Flow:
    """Ask the leader to keep the model loaded for the time that the body sets."""
    wish_s, client = flow.parsed.extras.wish_s, flow.head.client
    parts.keep_alive(flow.exchange.model, wish_s, client)
    return flow


async def _moved(parts: Parts, flow: Flow) -> float:
    """Load or unload the model, and return how many seconds the load took. For a provider's model,
    nothing is loaded or unloaded."""
    parsed: Parsed = flow.parsed
    if parts.tasks.table.provided(parsed.model) is not None:
        return 0.0
    model = parts.cluster.catalog.named(parsed.model)
    state = parts.cluster.bus.state
    if parsed.intent == "load":
        started_at = parts.reactor.now()
        await parts.cluster.command(PlaceModel(command_id=parts.cluster.command_id(), model=model))
        await parts.cluster.catalog.wait_ready(model, parts.options.load_timeout_s)
        parts.keep_alive(model, parsed.extras.wish_s, flow.head.client)
        return parts.reactor.now() - started_at
    for instance in list(state.instances.values()):
        if instance.pinned or model in state.pins:
            continue
        if instance.model == model and instance.status in ("placed", "ready"):
            await parts.cluster.command(
                DeleteInstance(
                    command_id=parts.cluster.command_id(),
                    instance=instance.instance,
                    drain_s=DRAIN_S,
                    why="a client asked to unload it",
                )
            )
    return 0.0
