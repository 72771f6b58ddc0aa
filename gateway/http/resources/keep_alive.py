"""Talks to the leader: loads and unloads models at a client's request.

Ollama's clients load a model by an empty request, and unload it by an empty request with
`keep_alive: 0`. A request to load waits like any other request for the model. A request to unload
lets open requests finish, and has no effect on pinned models and instances.
"""

from __future__ import annotations

from bus.models.tasks import ClientName
from bus.wire.instances import DRAIN_S
from bus.wire.messages.commands import DeleteInstance, PlaceModel
from gateway.dialects.dialect import Parsed
from gateway.service import HttpService


async def load_or_unload(service: HttpService, parsed: Parsed, client: ClientName) -> float:
    """Load or unload the model of an empty request, and return how many seconds the load took. A
    provider's model is never loaded here."""
    if service.tasks.table.provided(parsed.model) is not None:
        return 0.0
    model = service.catalog.named(parsed.model)
    load_s = 0.0
    if parsed.intent == "unload":
        for instance in list(service.bus.state.instances.values()):
            if instance.pinned or model in service.bus.state.pins:
                continue
            if instance.model == model and instance.status in ("placed", "ready"):
                await service.command(
                    DeleteInstance(
                        command_id=service.command_id(),
                        instance=instance.instance,
                        drain_s=DRAIN_S,
                        why="a client asked to unload it",
                    )
                )
    else:
        started_at = service.reactor.now()
        await service.command(PlaceModel(command_id=service.command_id(), model=model))
        await service.catalog.wait_ready(model, service.options.load_timeout_s)
        load_s = service.reactor.now() - started_at
        service.keep_alive(model, parsed.extras.wish_s, client)
    return load_s
