"""Talks to clients: makes a node pull a model, through Ollama's API or our own.

If the client disconnects, the pull stops, unless other clients wait for the same pull or it runs in
the background. The received bytes are kept, and the next pull resumes after them. The answer ends
once this process lists the model.
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
from gateway.cluster import Cluster
from gateway.control.pulling import Fitting, PullTarget, Splitting, pull_target
from gateway.dialects import api_table, dialect, faults
from gateway.dialects.body import Closed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.exchange import tell_ignored
from gateway.http.middleware import COMMAND_BYTES, Resource, read_body
from gateway.http.resources.pulls.plan import PullPlan, PullSplit, plan_of, split_of
from gateway.http.resources.pulls.running import RunningWork, Telling, error_line
from gateway.http.resources.pulls.target import node_named
from gateway.requests.catalog import ModelCatalog
from gateway.requests.pull_faults import of_pull

NOTICED_S, NOTICED_LOOK_S = 10.0, 0.05
NAME_CHARACTERS = 400
MOST_NODES = 32
"""The most ranks of a pipeline."""


class PullBody(Closed):
    """`POST /models/pull`: `model` is OWNER/NAME at the hub, OWNER/NAME:QUANTISATION for a GGUF
    file, or a short name. `to` is a node, by id or name; by default this node. `dry_run` only
    answers with the plan and whether the model would fit. `anyway` pulls a model even if no nodes
    can hold it in memory. `background`: the pull continues if the client disconnects, and after a
    restart of its node. `split`: two or more nodes, each of which pulls only its own layers in the
    background. An entry is NODE, or NODE=LAYERS in the order of the layers; without numbers, the
    leader chooses."""

    model: str = Field(min_length=1, max_length=NAME_CHARACTERS)
    revision: str = Field(default="", max_length=200)
    to: str | None = None
    stream: bool = True
    dry_run: bool = False
    anyway: bool = False
    background: bool = False
    split: list[str] = Field(default_factory=list[str], max_length=MOST_NODES)


class AddBody(Closed):
    """`POST /models/add`: `model_id` is OWNER/NAME at the hub, or a short name for it. `to` is a
    node, by id or name; by default this node."""

    model_id: str = Field(min_length=1, max_length=NAME_CHARACTERS)
    revision: str = Field(default="", max_length=200)
    to: str | None = None
    stream: bool = False


class PullEvent(Closed):
    """A line of the stream of `POST /models/pull`. The line of the last `status` is also the whole
    answer without a stream. `eta_s` is null unless bytes arrive; `sources` are the nodes that send
    the model; `known_as` is the short name of `model`. `unreckoned`: why shoal cannot say whether
    the model fits into the cluster's memory; in that case the model is pulled anyway. `background`:
    the pull is recorded, and continues if the client disconnects now. `choice`: which
    quantisation of a GGUF repository is pulled, and why; else empty."""

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
    background: bool
    choice: str


class PullAnswer(RootModel[PullEvent | PullPlan | PullSplit]):
    """The whole answer of `POST /models/pull`: the end of a pull, or with `dry_run` its plan, or
    with `split` the layers of each node."""


@dataclass(frozen=True)
class ModelToFetch(Resource):
    """A path of an API that has this node pull a model."""

    endpoint: api_table.FetchesModel

    async def on_post(self, req: Request, resp: Response) -> None:
        """Pull the model, unless it is already here. 404 if its name is no hub name."""
        options, endpoint = self.cluster.options, self.endpoint
        body = await read_body(req, COMMAND_BYTES, options.body_s)
        limits = dialect.Limits(depth=options.body_depth, strict_fields=options.strict_fields)
        request = endpoint.parse(body, limits)
        tell_ignored(self.parts, resp, endpoint.path, request.ignored)
        await self.cluster.catalog.wait_known()
        catalog = self.cluster.catalog
        if _is_here(catalog, request.name):
            resp.data = endpoint.answer()
            if request.stream:
                resp.content_type = endpoint.streams
                resp.data += b"\n"
            return
        try:
            target = pull_target(request.name, "", options.pull_names)
        except BadRequest as error:
            # clients of this API expect 404 for an unknown name
            fault = HttpFault(404, "model_not_found", error.message, error.field)
            raise HttpFaultRaised(fault) from None
        states = _fitting(self.cluster).pull(self.cluster.bus.speaker.node, target, anyway=False)
        listed = partial(_listed, self.cluster, target)
        running = RunningWork(
            req,
            states,
            Telling(of_pull, endpoint.line, endpoint.error_line, endpoint.streams, listed=listed),
        )
        if not request.stream:
            await running.whole()
            resp.data = endpoint.answer()
            return
        await running.stream(resp)


def _is_here(catalog: ModelCatalog, name: str) -> bool:
    """Return whether a name means a model on a disk, its adapter, or a derived model."""
    names = catalog.names()
    if model_named(name, names) or catalog.derived(name):
        return True
    adapted = catalog.adapters.named(name, names)
    return adapted is not None and adapted.is_there


class PullModel(Resource):
    """`POST /models/pull`: have a node pull a model."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Pull the model to the node of the body, by default to this node."""
        await answer_pull(self.cluster, req, resp, await self.read(req, PullBody))


class AddModel(Resource):
    """`POST /models/add`: have a node pull a model, so that the cluster lists it."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer as `POST /models/pull` does, but by default without a stream."""
        body = await self.read(req, AddBody, empty=b"")
        pull = PullBody(model=body.model_id, revision=body.revision, to=body.to, stream=body.stream)
        try:
            await answer_pull(self.cluster, req, resp, pull)
        except (BadRequest, HttpFaultRaised) as error:
            fault = faults.of_error(error)
            if fault is None or fault.field != "model":
                raise
            raise HttpFaultRaised(replace(fault, field="model_id")) from error


async def answer_pull(cluster: Cluster, req: Request, resp: Response, body: PullBody) -> None:
    """Have a node pull a model, and answer with its progress, or with `dry_run` with the plan.
    Raises HttpFaultRaised, BadRequest."""
    await cluster.catalog.wait_known()
    here = None if body.revision else model_named(body.model, cluster.catalog.names())
    if here is not None and "/" not in here:
        text = (
            f"the cluster already has the model {here}; to pull a model from a hub, name it as "
            "OWNER/NAME"
        )
        raise HttpFaultRaised(HttpFault(409, "conflict", text, field="model"))
    target = pull_target(body.model, body.revision, cluster.options.pull_names)
    if body.split:
        await _answer_split(cluster, resp, body, target)
        return
    node = cluster.bus.speaker.node
    if body.to is not None:
        node = node_named(cluster, body.to, "to")

    def render(state: PullState) -> bytes:
        return json_bytes(_event(state, node, target).model_dump(mode="json")) + b"\n"

    if body.dry_run:
        plan = await plan_of(_fitting(cluster), node, target)
        resp.data = json_bytes(plan.model_dump(mode="json"))
        return
    states = _fitting(cluster).pull(node, target, anyway=body.anyway, background=body.background)
    listed = partial(_listed, cluster, target)
    telling = Telling(of_pull, render, error_line, listed=listed)
    running = RunningWork(req, states, telling)
    if body.stream:
        await running.stream(resp)
    else:
        resp.data = render(await running.whole())


async def _answer_split(
    cluster: Cluster, resp: Response, body: PullBody, target: PullTarget
) -> None:
    """Divide the model over the nodes of the body, and have each pull its layers. Raises
    HttpFaultRaised, BadRequest."""
    if body.to is not None or body.anyway:
        word = "to" if body.to is not None else "anyway"
        raise BadRequest(f"split cannot be combined with {word}", field=word)
    counts = _split_counts(cluster, body.split)
    names = {card.node: card.name for card in cluster.readings.cards(cluster.reactor.now())}
    splitting = Splitting(cluster.bus, cluster.readings)
    answer = await split_of(splitting, target, counts, names, dry_run=body.dry_run)
    resp.data = json_bytes(answer.model_dump(mode="json"))


def _split_counts(cluster: Cluster, entries: list[str]) -> dict[NodeId, int | None]:
    """Return the nodes of a split, each with its number of layers (None: not given). Raises
    HttpFaultRaised, BadRequest."""
    counts: dict[NodeId, int | None] = {}
    for entry in entries:
        word, equals, count = entry.partition("=")
        node = node_named(cluster, word.strip(), "split")
        if node in counts:
            raise BadRequest(f"the node {word.strip()} is named twice", field="split")
        if equals and not count.strip().isdecimal():
            raise BadRequest(f"{entry[:200]!r} is not of the form NODE=LAYERS", field="split")
        counts[node] = int(count[:9]) if equals else None
    if len(counts) < 2:
        raise BadRequest("name at least two nodes; use `to` for one node", field="split")
    if len({count is None for count in counts.values()}) > 1:
        raise BadRequest("give the number of layers of each node, or of none", field="split")
    return counts


def _fitting(cluster: Cluster) -> Fitting:
    return Fitting(cluster.bus, cluster.readings)


async def _listed(cluster: Cluster, target: PullTarget) -> None:
    """Wait until this process lists the model, at most `NOTICED_S`."""
    give_up_at = cluster.reactor.now() + NOTICED_S
    while target.model not in cluster.catalog.names():
        if cluster.reactor.now() > give_up_at:
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
        background=state.background,
        choice=state.choice,
    )
