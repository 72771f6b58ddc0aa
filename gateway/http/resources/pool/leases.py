"""Talks to clients about leases, which reserve memory for programs other than shoal."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from falcon.asgi import Request, Response
from pydantic import Field
from typing_extensions import TypedDict

from bus.process.clock import wall
from bus.process.identity import new_name
from bus.wire.ids import ModelId
from bus.wire.messages.commands import (
    Acknowledged,
    AskLeaseBack,
    EndLease,
    RenewLease,
    TakeLease,
)
from bus.wire.pool import LEAST_TTL_S, MOST_BYTES, MOST_TTL_S, Lease, LeaseId, PoolWait
from gateway.cluster import Cluster
from gateway.dialects import faults
from gateway.dialects.body import Closed
from gateway.dialects.encode import Dump
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.exchange import hung_up
from gateway.http.callers import key_id
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.instances import CommandDone, acknowledgement, known_nodes
from gateway.http.scope import scope_of
from gateway.view.readings import pool_of, wait_of

ROOM_S = 10.0
"""A lease request waits at least this long, so that idle instances can be evicted."""
ASK_S, AGAIN_S = 5.0, 1.0
"""Deadline of one command to the leader, and the delay before the command is repeated after a
refusal."""
MOST_WAIT_S = 3600.0
GONE = "the client that requested the lease has disconnected"


class LeaseBody(Closed):
    """`POST /leases`. `node` is an id or a name; by default the node where the lease costs least.
    `wait_s` is how long to wait until instances in use can be evicted."""

    size_bytes: int = Field(gt=0, le=MOST_BYTES)
    node: str | None = None
    owner: str = Field(default="", max_length=64)
    priority: int = Field(default=10, ge=0, le=1000)
    ttl_s: float = Field(default=30.0, ge=LEAST_TTL_S, le=MOST_TTL_S)
    wait_s: float = Field(default=0.0, ge=0.0, le=MOST_WAIT_S)


class RenewalBody(Closed):
    """`POST /leases/{lease}/renew`. `used_bytes` is the part of the lease that is in use. If it is
    null, the whole lease is kept free."""

    used_bytes: int | None = Field(default=None, ge=0, le=MOST_BYTES)


NamedLease = Annotated[dict[str, Any], Dump(Lease, adds=(("node_name", "string"),))]


class LeasesAnswer(TypedDict):
    """The leases, and the lease requests that still wait for memory."""

    leases: list[NamedLease]
    waits: list[Annotated[dict[str, Any], Dump(PoolWait)]]


_OF_COMMANDS = (
    ("command_id", "string"),
    ("term", "integer"),
    ("index", "integer"),
    ("durability", "string"),
)
LeaseAnswer = Annotated[
    dict[str, Any],
    Dump(Lease, adds=(("node_name", "string"), *_OF_COMMANDS)),
]
"""The current state of a lease, and the result of a command about it."""


class LeaseLetGo(CommandDone):
    """The answer of `DELETE /leases/{lease}`: the lease has ended."""

    lease: str


class LeaseList(Resource):
    """`/leases`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the leases and the waiting lease requests."""
        answer_json(resp, leases_answer(self.cluster))

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer with a lease once its memory is free. 503 with the reason if that takes too
        long."""
        cluster = self.cluster
        body = await self.read(req, LeaseBody)
        node = None if body.node is None else known_nodes(cluster, [body.node], field="node")[0]
        key = cluster.bus.state.api_keys.get(key_id(req) or "")
        command = TakeLease(
            command_id=cluster.command_id(),
            lease=LeaseId(new_name("lease")),
            size_bytes=body.size_bytes,
            node=node,
            owner=body.owner or ("" if key is None else key.name[:64]),
            priority=body.priority,
            ttl_s=body.ttl_s,
            at_s=wall(),
        )
        gone = asyncio.ensure_future(hung_up(scope_of(req).receive))
        try:
            answer = await _take(cluster, command, max(ROOM_S, body.wait_s), gone)
        finally:
            if gone.done():  # the client hung up, but the lease may have been granted
                end = EndLease(command_id=cluster.command_id(), lease=command.lease, why=GONE)
                cluster.bus.command(end, lambda _answer: None)
            gone.cancel()
        await _answer_lease(cluster, resp, command.lease, answer)


class LeaseResource(Resource):
    """`/leases/{lease}`."""

    async def on_delete(self, req: Request, resp: Response, lease: str) -> None:
        """End a lease, so that others can use its memory."""
        cluster = self.cluster
        command = EndLease(command_id=cluster.command_id(), lease=LeaseId(lease))
        done = acknowledgement(await cluster.command(command))
        ended: LeaseLetGo = {"lease": lease, **done}
        answer_json(resp, ended)


class LeaseRenewal(Resource):
    """`POST /leases/{lease}/renew`."""

    async def on_post(self, req: Request, resp: Response, lease: str) -> None:
        """Answer with the current state of the lease; `yields_to` names the model or the user that
        needs its memory."""
        body = await self.read(req, RenewalBody, empty=b"")
        command = RenewLease(
            command_id=self.cluster.command_id(),
            lease=LeaseId(lease),
            used_bytes=body.used_bytes,
        )
        await _changed(self.cluster, resp, command)


class LeaseAsking(Resource):
    """`POST /leases/{lease}/ask-back`."""

    async def on_post(self, req: Request, resp: Response, lease: str) -> None:
        """Ask the client that holds a lease to end it. The answer to that client's next renewal
        contains this request."""
        cluster = self.cluster
        key = cluster.bus.state.api_keys.get(key_id(req) or "")
        by = "" if key is None else key.name[:64]
        command = AskLeaseBack(command_id=cluster.command_id(), lease=LeaseId(lease), by=by)
        await _changed(cluster, resp, command)


def leases_answer(cluster: Cluster) -> LeasesAnswer:
    """Return the leases and the waiting lease requests, for JSON."""
    state = cluster.bus.state
    reading = pool_of(cluster.readings, cluster.reactor.now())
    waits = () if reading is None else reading.waits
    return {
        "leases": [_lease(cluster, LeaseId(name)) for name in sorted(state.leases)],
        "waits": [wait.model_dump(mode="json") for wait in waits if wait.kind == "lease"],
    }


async def _take(
    cluster: Cluster, command: TakeLease, wait_s: float, gone: asyncio.Future[None]
) -> Acknowledged:
    """Return the leader's answer to a lease request. A refusal is retried until `wait_s` has passed
    or the client is gone. Raises HttpFaultRaised."""
    give_up_at = cluster.reactor.now() + wait_s
    while True:
        left_s = give_up_at - cluster.reactor.now()
        try:
            return await cluster.command(command, deadline_s=max(AGAIN_S, min(ASK_S, left_s)))
        except HttpFaultRaised as raised:
            fault = raised.fault
            if fault.retry_after_s is None or gone.done():
                raise
            now = cluster.reactor.now()
            if give_up_at - now <= AGAIN_S:
                wait = wait_of(cluster.readings, ModelId(command.lease), now)
                why = fault.message if wait is None else wait.why
                text = f"no memory became free within {wait_s:.0f} s: {why}"
                fault = HttpFault(503, "no_capacity", text, retry_after_s=fault.retry_after_s)
                raise HttpFaultRaised(fault) from None
        await asyncio.sleep(AGAIN_S)


async def _changed(cluster: Cluster, resp: Response, command: RenewLease | AskLeaseBack) -> None:
    await _answer_lease(cluster, resp, command.lease, await cluster.command(command))


async def _answer_lease(
    cluster: Cluster, resp: Response, lease: LeaseId, answer: Acknowledged
) -> None:
    await cluster.noticed(answer)
    if lease not in cluster.bus.state.leases:
        raise HttpFaultRaised(faults.not_found(f"lease '{lease}'"))
    answer_json(resp, {**_lease(cluster, lease), **acknowledgement(answer)})


def _lease(cluster: Cluster, lease: LeaseId) -> dict[str, Any]:
    state = cluster.bus.state
    fields = state.leases[lease].model_dump(mode="json")
    seat = state.nodes.get(fields["node"])
    return {**fields, "node_name": fields["node"] if seat is None else seat.name}
