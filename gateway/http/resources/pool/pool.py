"""Talks to clients about the pool: how it stands, and pins; a pin is one command to the holder."""

from __future__ import annotations

from typing import Annotated, Any

from falcon.asgi import Request, Response
from pydantic import Field
from typing_extensions import TypedDict

from bus.process.clock import wall
from bus.wire.messages.commands import PinModel
from bus.wire.pool import Pin, PoolCopy, PoolWait
from gateway.cluster.readings import pool_of
from gateway.cluster.watch import LoadsTold, QueueRow, queue_of
from gateway.dialects.body import Closed
from gateway.dialects.encode import Dump
from gateway.http.callers import key_id
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.instances import CommandDone, acknowledged
from gateway.http.resources.pool.leases import NamedLease, leases_told
from gateway.service import HttpService, ServiceHandle


class PinBody(Closed):
    """`POST /pin` and `POST /unpin`; `by` is who says so, where it is not the API key's name."""

    model: str
    by: str = Field(default="", max_length=64)


class PoolAnswer(TypedDict):
    """How the pool stands: what waits and why, copies, pins, leases, the queue by priority, and
    what was loaded and unloaded in the last hour."""

    holder: str | None
    waits: list[Annotated[dict[str, Any], Dump(PoolWait)]]
    copies: list[Annotated[dict[str, Any], Dump(PoolCopy)]]
    pins: list[Annotated[dict[str, Any], Dump(Pin)]]
    leases: list[NamedLease]
    queue: list[QueueRow]
    loads: LoadsTold


class PinAnswer(CommandDone):
    """A model is pinned, or not any more."""

    model: str
    pinned: bool


class PoolResource(Resource):
    """`GET /pool`: what waits and why, copies, pins, leases, the last hour's loads."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with what the holder says of the pool, the pins, the queue by priority, and
        what was loaded and unloaded in the last hour."""
        service = self.service
        answer_json(resp, pool_told(service))


class PinResource(Resource):
    """`POST /pin`, or with `pinned` False `POST /unpin`."""

    def __init__(self, handle: ServiceHandle, *, pinned: bool) -> None:
        super().__init__(handle)
        self._pinned = pinned

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer with the command's place in the log; or a refusal that says what is in the way."""
        service = self.service
        asked = await self.read(req, PinBody)
        await service.catalog.wait_known()
        key = service.bus.state.api_keys.get(key_id(req) or "")
        command = PinModel(
            command_id=service.command_id(),
            model=service.catalog.named(asked.model),
            pinned=self._pinned,
            by=asked.by or ("" if key is None else key.name[:64]),
            at_s=wall(),
        )
        answer = await service.command(command)
        told: PinAnswer = {
            "model": command.model,
            "pinned": self._pinned,
            **acknowledged(answer),
        }
        answer_json(resp, told)


def pool_told(service: HttpService) -> PoolAnswer:
    """Return how the pool stands, for JSON; while no holder is heard, without what that
    says."""
    now, state = service.reactor.now(), service.bus.state
    reading = pool_of(service.readings, now)
    pins = state.pins
    told: dict[str, Any] = {"node": None, "waits": [], "copies": []}
    if reading is not None:
        told = reading.model_dump(mode="json", exclude={"kind", "term"})
    return {
        "holder": told["node"],
        "waits": told["waits"],
        "copies": told["copies"],
        "pins": [pins[model].model_dump(mode="json") for model in sorted(pins)],
        "leases": leases_told(service)["leases"],
        "queue": queue_of(service.readings, state.instances, now),
        "loads": service.loads.told(wall()),
    }
