"""Talks to clients about the pool, the memory that all models share: shows its state, and pins
models. Each change of a pin is one command to the leader."""

from __future__ import annotations

from typing import Annotated, Any

from falcon.asgi import Request, Response
from pydantic import Field
from typing_extensions import TypedDict

from bus.process.clock import wall
from bus.wire.messages.commands import PinModel
from bus.wire.pool import Pin, PoolCopy, PoolWait
from gateway.cluster import Cluster
from gateway.dialects.body import Closed
from gateway.dialects.encode import Dump
from gateway.http.callers import key_id
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.instances import CommandDone, acknowledgement
from gateway.http.resources.pool.leases import NamedLease, leases_answer
from gateway.service import ServiceHandle
from gateway.view.readings import pool_of
from gateway.view.watch import LoadsTold, QueueRow, queue_of
from gateway.view.watching import Watch


class PinBody(Closed):
    """`POST /pin` and `POST /unpin`; `by` names the user, by default the API key's name."""

    model: str
    by: str = Field(default="", max_length=64)


class PoolAnswer(TypedDict):
    """The state of the pool: waiting demand with reasons, instances (`copies`), pins, leases, the
    queue by priority, and the loads and unloads of the last hour."""

    holder: str | None
    waits: list[Annotated[dict[str, Any], Dump(PoolWait)]]
    copies: list[Annotated[dict[str, Any], Dump(PoolCopy)]]
    pins: list[Annotated[dict[str, Any], Dump(Pin)]]
    leases: list[NamedLease]
    queue: list[QueueRow]
    loads: LoadsTold


class PinAnswer(CommandDone):
    """A model that was pinned or unpinned."""

    model: str
    pinned: bool


class PoolResource(Resource):
    """`GET /pool`: waiting demand, instances, pins, leases, and the last hour's loads."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the leader's reading of the pool, the pins, the leases, the queue by
        priority, and the loads and unloads of the last hour."""
        cluster, watch = self.cluster, self.watch
        answer_json(resp, pool_answer(cluster, watch))


class PinResource(Resource):
    """`POST /pin`, or with `pinned` False `POST /unpin`."""

    def __init__(self, handle: ServiceHandle, *, pinned: bool) -> None:
        super().__init__(handle)
        self._pinned = pinned

    async def on_post(self, req: Request, resp: Response) -> None:
        """Pin or unpin the model, and answer with the command's position in the log."""
        cluster = self.cluster
        body = await self.read(req, PinBody)
        await cluster.catalog.wait_known()
        key = cluster.bus.state.api_keys.get(key_id(req) or "")
        command = PinModel(
            command_id=cluster.command_id(),
            model=cluster.catalog.named(body.model),
            pinned=self._pinned,
            by=body.by or ("" if key is None else key.name[:64]),
            at_s=wall(),
        )
        answer = await cluster.command(command)
        pin: PinAnswer = {
            "model": command.model,
            "pinned": self._pinned,
            **acknowledgement(answer),
        }
        answer_json(resp, pin)


def pool_answer(cluster: Cluster, watch: Watch) -> PoolAnswer:
    """Return the state of the pool, for JSON. Without a reading from the leader, `holder` is null,
    and `waits` and `copies` are empty."""
    now, state = cluster.reactor.now(), cluster.bus.state
    reading = pool_of(cluster.readings, now)
    pins = state.pins
    fields: dict[str, Any] = {"node": None, "waits": [], "copies": []}
    if reading is not None:
        fields = reading.model_dump(mode="json", exclude={"kind", "term"})
    return {
        "holder": fields["node"],
        "waits": fields["waits"],
        "copies": fields["copies"],
        "pins": [pins[model].model_dump(mode="json") for model in sorted(pins)],
        "leases": leases_answer(cluster)["leases"],
        "queue": queue_of(cluster.readings, state.instances, now),
        "loads": watch.loads.plain(wall()),
    }
