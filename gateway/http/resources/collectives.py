"""Talks to clients about collective tests: begin one, see how far it is. Ending one is deleting
its instance."""

from __future__ import annotations

from falcon.asgi import Request, Response
from pydantic import Field

from bus.wire.ids import InstanceId
from bus.wire.messages.collectives import Backend, Mode
from bus.wire.messages.commands import RunCollectiveTest
from gateway.dialects import faults
from gateway.dialects.body import Closed, FieldTable, read_object, take_extras, validate
from gateway.dialects.dialect import Limits
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFaultRaised
from gateway.http.collectives import standing_of
from gateway.http.middleware import read_body
from gateway.http.resources.instances import acknowledged, known_nodes
from gateway.service import ServiceHandle


class CollectiveTestBody(Closed):
    """`POST /rdma-test`."""

    nodes: list[str] = []
    mode: Mode = "standard"
    backend: Backend | None = None
    memory_bytes: int | None = Field(default=None, ge=1)


class CollectiveTests:
    """`POST /rdma-test`: test the collectives between nodes."""

    def __init__(self, handle: ServiceHandle) -> None:
        self._handle = handle

    async def on_post(self, req: Request, resp: Response) -> None:
        """The acknowledgement, with the id of the instance that is the test."""
        service = self._handle.service
        body = await read_body(req, service.options.body_limit_bytes)
        found = read_object(body or b"{}", Limits(depth=service.options.body_depth))
        take_extras(found)
        asked = validate(CollectiveTestBody, found, FieldTable())
        await service.catalog.wait_known()
        command = RunCollectiveTest(
            command_id=service.command_id(),
            nodes=known_nodes(service, asked.nodes, field="nodes"),
            mode=asked.mode,
            backend=asked.backend,
            memory_bytes=asked.memory_bytes,
        )
        resp.data = json_bytes(acknowledged(await service.command(command)))
        resp.content_type = "application/json"


class CollectiveTestResource:
    """`/rdma-test/{instance}`."""

    def __init__(self, handle: ServiceHandle) -> None:
        self._handle = handle

    async def on_get(self, req: Request, resp: Response, instance: str) -> None:
        """How far it is, and what all ranks have found so far; for ten minutes after its end."""
        service = self._handle.service
        readings = service.readings.test_of(InstanceId(instance), service.reactor.now())
        held = service.bus.state.instances.get(instance)
        found = standing_of(instance, held, readings)
        if found is None:
            raise HttpFaultRaised(faults.not_found(f"collective test '{instance}'"))
        resp.data = json_bytes(found)
        resp.content_type = "application/json"
