"""Talks to clients who have a node pull a model: in Ollama's words, and in our own.

A client that hangs up stops the pull, unless others wait for it; what came is kept, and pulling
again goes on with it. The answer ends once this process lists the model.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial

from falcon.asgi import Request, Response
from pydantic import Field, RootModel

from bus.wire.cards import model_named
from bus.wire.errors import BadRequest
from bus.wire.ids import NodeId
from bus.wire.messages.readings import PullPhase, PullState
from gateway.cluster.pulling import Fitting, PullTarget, pull_target
from gateway.dialects import api_table, dialect, faults
from gateway.dialects.body import Closed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.middleware import (
    COMMAND_BYTES,
    Resource,
    read_body,
    tell_ignored,
)
from gateway.http.resources.pulls.plan import PullPlan, plan_of
from gateway.http.resources.pulls.running import RunningWork, Telling, error_line
from gateway.http.resources.pulls.target import node_named
from gateway.requests.catalog import ModelCatalog
from gateway.service import HttpService

NOTICED_S, NOTICED_LOOK_S = 10.0, 0.05
NAME_CHARACTERS = 400


class PullBody(Closed):
    """`POST /models/pull`: `to` is a node, by its id or name; without, the one that is asked.
    `dry_run`: only what would come is told, and whether it would fit. `anyway`: pulled even where
    no nodes could ever hold it in memory."""

    model: str = Field(min_length=1, max_length=NAME_CHARACTERS)
    revision: str = Field(default="", max_length=200)
    to: str | None = None
    stream: bool = True
    dry_run: bool = False
    anyway: bool = False


class AddBody(Closed):
    """`POST /models/add`: `model_id` is OWNER/NAME at the hub, or a name that stands for one; it
    comes to `to`, a node by its id or name, without to the one that is asked."""

    model_id: str = Field(min_length=1, max_length=NAME_CHARACTERS)
    revision: str = Field(default="", max_length=200)
    to: str | None = None
    stream: bool = False


class PullEvent(Closed):
    """A line of the stream of `POST /models/pull`, and, with the last `status`, its answer of one
    piece. `eta_s` is known while bytes come; `sources` are the nodes that it is copied from;
    `known_as` is the name of the table that stands for `model`. `unreckoned`: why it could not be
    told whether the model fits into the memory of the cluster; it is pulled all the same."""

    status: PullPhase
    model: str
    node: str
    known_as: str
    hub: str
    revision: str
    digest: str
    files: int
    completed: int
    total: int
    received_bytes: int
    bytes_per_s: float
    eta_s: float | None
    sources: list[str]
    note: str
    unreckoned: str


class PullAnswer(RootModel[PullEvent | PullPlan]):
    """What `POST /models/pull` answers whole: the end of a pull, or with `dry_run` what one would
    bring."""


@dataclass(frozen=True)
class ModelToFetch(Resource):
    """A path of an API by which clients have this node pull a model."""

    endpoint: api_table.FetchesModel

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer that the model is here, or pull it."""
        options, endpoint = self.service.options, self.endpoint
        body = await read_body(req, COMMAND_BYTES, options.body_s)
        limits = dialect.Limits(depth=options.body_depth, strict_fields=options.strict_fields)
        asked = endpoint.parse(body, limits)
        tell_ignored(self.service, resp, endpoint.path, asked.ignored)
        await self.service.catalog.wait_known()
        catalog = self.service.catalog
        if _is_here(catalog, asked.name):
            resp.data = endpoint.answer()
            if asked.stream:
                resp.content_type = endpoint.streams
                resp.data += b"\n"
            return
        try:
            target = pull_target(asked.name, "", options.pull_names)
        except BadRequest as error:
            # clients of this API know a name that means nothing by its 404
            fault = HttpFault(404, "model_not_found", error.message, error.field)
            raise HttpFaultRaised(fault) from None
        states = _fitting(self.service).pull(self.service.bus.speaker.node, target, anyway=False)
        listed = partial(_listed, self.service, target)
        running = RunningWork(
            req,
            states,
            Telling(
                faults.of_pull, endpoint.line, endpoint.error_line, endpoint.streams, listed=listed
            ),
        )
        if not asked.stream:
            await running.whole()
            resp.data = endpoint.answer()
            return
        await running.stream(resp)


def _is_here(catalog: ModelCatalog, name: str) -> bool:
    """Return whether a name means a model on disk, an adapter of one, or a derived model."""
    names = catalog.names()
    if model_named(name, names) or catalog.derived(name):
        return True
    adapted = catalog.adapters.named(name, names)
    return adapted is not None and adapted.is_there


class PullModel(Resource):
    """`POST /models/pull`: have a node pull a model."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Pull it to the node that is named, or to this one."""
        await answer_pull(self.service, req, resp, await self.read(req, PullBody))


class AddModel(Resource):
    """`POST /models/add`: have a node pull a model, which is what makes the cluster know one."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer as `POST /models/pull` does; whole, unless a stream is asked for."""
        asked = await self.read(req, AddBody, empty=b"")
        pull = PullBody(
            model=asked.model_id, revision=asked.revision, to=asked.to, stream=asked.stream
        )
        try:
            await answer_pull(self.service, req, resp, pull)
        except (BadRequest, HttpFaultRaised) as error:
            fault = faults.of_error(error)
            if fault is None or fault.field != "model":
                raise
            raise HttpFaultRaised(replace(fault, field="model_id")) from error


async def answer_pull(service: HttpService, req: Request, resp: Response, asked: PullBody) -> None:
    """Have a node pull what is asked for, and answer with how far it is. Raises HttpFaultRaised,
    BadRequest."""
    await service.catalog.wait_known()
    here = None if asked.revision else model_named(asked.model, service.catalog.names())
    if here is not None and "/" not in here:
        text = f"{here} is already here; hub models are named OWNER/NAME"
        raise HttpFaultRaised(HttpFault(409, "conflict", text, field="model"))
    target = pull_target(asked.model, asked.revision, service.options.pull_names)
    node = service.bus.speaker.node
    if asked.to is not None:
        node = node_named(service, asked.to, "to")

    def told(state: PullState) -> bytes:
        """Return a line."""
        return json_bytes(_event(state, node, target).model_dump(mode="json")) + b"\n"

    if asked.dry_run:
        found = await plan_of(_fitting(service), node, target)
        resp.data = json_bytes(found.model_dump(mode="json"))
        return
    states = _fitting(service).pull(node, target, anyway=asked.anyway)
    listed = partial(_listed, service, target)
    telling = Telling(faults.of_pull, told, error_line, listed=listed)
    running = RunningWork(req, states, telling)
    if asked.stream:
        await running.stream(resp)
    else:
        resp.data = told(await running.whole())


def _fitting(service: HttpService) -> Fitting:
    return Fitting(service.bus, service.readings)


async def _listed(service: HttpService, target: PullTarget) -> None:
    """Wait until this process knows of the model, for a while."""
    give_up_at = service.reactor.now() + NOTICED_S
    while target.model not in service.catalog.names():
        if service.reactor.now() > give_up_at:
            return
        await asyncio.sleep(NOTICED_LOOK_S)


def _event(state: PullState, node: NodeId, target: PullTarget) -> PullEvent:
    left = state.total_bytes - state.done_bytes
    knows = state.phase in ("fetching", "copying") and state.bytes_per_s > 0
    return PullEvent(
        status=state.phase,
        model=state.model,
        node=node,
        known_as=target.known_as,
        hub=state.hub,
        revision=state.revision,
        digest=state.digest,
        files=state.files,
        completed=state.done_bytes,
        total=state.total_bytes,
        received_bytes=state.received_bytes,
        bytes_per_s=round(state.bytes_per_s, 1),
        eta_s=round(left / state.bytes_per_s, 1) if knows else None,
        sources=list(state.sources),
        note=state.note,
        unreckoned="" if state.forecast is None else state.forecast.why,
    )
