"""Talks to clients about tests of the collectives between nodes: starts a test and shows its
progress. To stop a test, delete its instance."""

from __future__ import annotations

from falcon.asgi import Request, Response
from pydantic import Field

from bus.wire.ids import InstanceId
from bus.wire.messages.collectives import Backend, Mode
from bus.wire.messages.commands import RunCollectiveTest
from gateway.dialects import faults
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFaultRaised
from gateway.http.collectives import standing_of
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.instances import acknowledgement, known_nodes


class CollectiveTestBody(Closed):
    """`POST /rdma-test`."""

    nodes: list[str] = []
    mode: Mode = "standard"
    backend: Backend | None = None
    memory_bytes: int | None = Field(default=None, ge=1)


class CollectiveTests(Resource):
    """`POST /rdma-test`: test the collectives between nodes."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Start a test. Answer with the acknowledgement and the id of the test's instance."""
        cluster = self.cluster
        body = await self.read(req, CollectiveTestBody)
        await cluster.catalog.wait_known()
        command = RunCollectiveTest(
            command_id=cluster.command_id(),
            **body.model_dump(exclude={"nodes"}),
            nodes=known_nodes(cluster, body.nodes, field="nodes"),
        )
        answer_json(resp, acknowledgement(await cluster.command(command)))


class CollectiveTestResource(Resource):
    """`/rdma-test/{instance}`."""

    async def on_get(self, req: Request, resp: Response, instance: str) -> None:
        """Answer with the progress of the test and the results of all ranks. 404 if the test ended
        more than ten minutes ago."""
        cluster = self.cluster
        readings = cluster.readings.test_of(InstanceId(instance), cluster.reactor.now())
        held = cluster.bus.state.instances.get(instance)
        standing = standing_of(instance, held, readings)
        if standing is None:
            raise HttpFaultRaised(faults.not_found(f"collective test '{instance}'"))
        answer_json(resp, standing)
