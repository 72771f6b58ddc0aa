"""Talks to clients about instances of models: plans, loads, shows and deletes instances.

Each change is one command to the leader. If the leader refuses, the answer has the reason and the
numbers. An impossible placement is never answered with 200.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NotRequired

from falcon.asgi import Request, Response
from pydantic import Field, field_validator
from typing_extensions import TypedDict

from bus.wire.errors import BadRequest
from bus.wire.ids import InstanceId, NodeId
from bus.wire.instances import Instance
from bus.wire.kv import KvKind, not_a_kind
from bus.wire.messages.commands import Acknowledged, DeleteInstance, Durability, PlaceModel
from bus.wire.messages.readings import RunnerReading
from gateway.cluster import Cluster
from gateway.dialects import faults
from gateway.dialects.body import Closed, bad_field
from gateway.dialects.encode import Dump
from gateway.dialects.faults import HttpFaultRaised
from gateway.http.middleware import Resource, answer_json

MAX_DRAIN_S = 3600.0
MOST = 1 << 31
"""Numbers of tokens and nodes in a body must be below this limit."""


class LoadBody(Closed):
    """The properties of a new instance that do not depend on its nodes."""

    model: str
    context_tokens: int | None = Field(default=None, ge=1, lt=MOST)
    keep_alive_s: float | None = None
    pinned: bool = False
    priority: int = Field(default=10, ge=0, le=1000)
    dry_run: bool = False
    sharding: Literal["pipeline", "tensor"] | None = None
    layers: dict[str, int] = {}
    kv: KvKind | None = None

    @field_validator("kv", mode="before")
    @classmethod
    def _is_a_kind(cls, kind: Any) -> Any:
        if kind is not None and (wrong := not_a_kind(kind)) is not None:
            raise ValueError(wrong)
        return kind


class PlaceBody(LoadBody):
    """`POST /place_instance`."""

    excluded_nodes: list[str] = []
    min_nodes: int = Field(default=1, ge=1, lt=MOST)
    if_absent: bool = True


class InstanceBody(LoadBody):
    """`POST /instance`: either `layers`, the layer count of each node in pipeline order; or
    `nodes`, which get one rank each in the fastest split."""

    nodes: list[str] = []
    if_absent: bool = False


class CommandDone(TypedDict):
    """The log position of a command's effect, and its durability. `plan` is the placement, also of
    a dry run."""

    command_id: str
    term: int
    index: int
    durability: Durability
    instance: NotRequired[str]
    plan: NotRequired[dict[str, Any]]


class PlacedAnswer(CommandDone):
    """A new instance, or with `dry_run` its plan."""

    model: str


class InstanceAnswer(TypedDict):
    """An instance from the cluster's state, and the latest reading of its runner (null: no reading
    yet)."""

    instance: Annotated[dict[str, Any], Dump(Instance)]
    reading: Annotated[dict[str, Any], Dump(RunnerReading)] | None


class PlaceInstance(Resource):
    """`POST /place_instance`: load an instance of a model."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer with the acknowledgement and the instance's id; on `dry_run` with the plan."""
        cluster = self.cluster
        body = await self.read(req, PlaceBody, empty=b"")
        await cluster.catalog.wait_known()
        answer_json(resp, await _place(cluster, body))


class NewInstance(Resource):
    """`POST /instance`: load an instance on exactly the nodes of the body."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer as `POST /place_instance` does. Raises BadRequest, naming the field."""
        cluster = self.cluster
        body = await self.read(req, InstanceBody, empty=b"")
        await cluster.catalog.wait_known()
        answer_json(resp, await _place(cluster, _by_hand(cluster, body)))


class PlacementPlan(Resource):
    """`GET /instance/placement?model=...`: the plan of a placement, as a dry run."""

    async def on_get(self, req: Request, resp: Response) -> None:
        await self.cluster.catalog.wait_known()
        answer_json(resp, await _place(self.cluster, _query_body(req)))


class PlacementPreviews(Resource):
    """`GET /instance/previews?model=...`: all candidates, with bytes and speed or a reason."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the best placement for each node count and kind of sharding, or why there is
        none. `chosen` is the placement that would be used now, `refusal` the error instead."""
        cluster, body = self.cluster, _query_body(req)
        await cluster.catalog.wait_known()
        command = _command(cluster, body).model_copy(update={"previews": True})
        answer = await cluster.command(command)
        answer_json(resp, answer.plan)


class InstanceResource(Resource):
    """`/instance/{id}`."""

    async def on_get(self, req: Request, resp: Response, instance: str) -> None:
        cluster = self.cluster
        held = cluster.bus.state.instances.get(instance)
        if held is None:
            raise HttpFaultRaised(faults.not_found(f"instance '{instance}'"))
        reading = cluster.readings.runner_of(held, cluster.reactor.now())
        answer: InstanceAnswer = {
            "instance": held.model_dump(mode="json"),
            "reading": None if reading is None else reading.model_dump(mode="json"),
        }
        answer_json(resp, answer)

    async def on_delete(self, req: Request, resp: Response, instance: str) -> None:
        """Drain the instance for up to `?drain_s=` seconds, then unload it."""
        cluster = self.cluster
        drain_s = _seconds(req, "drain_s", MAX_DRAIN_S)
        command = DeleteInstance(
            command_id=cluster.command_id(),
            instance=InstanceId(instance),
            drain_s=drain_s,
            why="deleted through the HTTP API",
        )
        answer_json(resp, acknowledgement(await cluster.command(command)))


async def _place(cluster: Cluster, body: PlaceBody) -> PlacedAnswer:
    command = _command(cluster, body)
    answer = await cluster.command(command)
    return {"model": command.model, **acknowledgement(answer)}


def _command(cluster: Cluster, body: PlaceBody) -> PlaceModel:
    """Return the command of a body. Raises HttpFaultRaised (404), BadRequest."""
    return PlaceModel(
        command_id=cluster.command_id(),
        **body.model_dump(exclude={"model", "excluded_nodes"}),
        model=cluster.catalog.named(body.model),
        excluded_nodes=known_nodes(cluster, body.excluded_nodes, field="excluded_nodes"),
    )


def _by_hand(cluster: Cluster, body: InstanceBody) -> PlaceBody:
    """Return a placement on exactly the nodes of the body. Raises BadRequest."""
    if bool(body.layers) == bool(body.nodes):
        text = (
            'specify the placement once: {"layers": {"mini": 12, "studio": 20}} or '
            '{"nodes": ["mini"]}'
        )
        raise bad_field("layers", text)
    named = known_nodes(cluster, body.nodes, field="nodes")
    if len(set(named)) < len(named):
        raise bad_field("nodes", "a node has one rank of an instance; list each node once")
    others = [str(name) for name in _names(cluster) if named and name not in named]
    return PlaceBody(
        **body.model_dump(exclude={"nodes"}),
        excluded_nodes=others,
        min_nodes=max(1, len(named)),
    )


def known_nodes(cluster: Cluster, names: list[str], *, field: str) -> tuple[NodeId, ...]:
    """Return the ids of nodes given by id or name. Raises BadRequest with the field for a name that
    no node or several nodes have; a misspelled exclusion must not be ignored."""
    called = _names(cluster)
    nodes: list[NodeId] = []
    for name in names:
        meant = [node for node in called if name == node] or [
            n for n in called if name == called[n]
        ]
        if len(meant) != 1:
            choices = ", ".join(sorted(f"{node} ({its})" for node, its in called.items()))
            text = (
                f"{len(meant) or 'no'} nodes have the name {name!r}; the nodes are: "
                f"{choices or 'none'}"
            )
            raise BadRequest(text, field=field)
        nodes.append(meant[0])
    return tuple(nodes)


def _names(cluster: Cluster) -> dict[NodeId, str]:
    called = {node.node: node.name for node in cluster.bus.state.nodes.values()}
    return called | {card.node: card.name for card in cluster.readings.cards(cluster.reactor.now())}


def _query_body(req: Request) -> PlaceBody:
    """Return the dry run that the query describes. Raises BadRequest."""
    model = req.get_param("model")
    if not model:
        raise BadRequest("model is required", field="model")
    sharding = req.get_param("sharding")
    if sharding is not None and sharding != "pipeline" and sharding != "tensor":
        raise bad_field("sharding", "must be 'pipeline' or 'tensor'")
    kv = req.get_param("kv")
    if kv is not None and (wrong := not_a_kind(kv)) is not None:
        raise bad_field("kv", wrong)
    return PlaceBody(
        model=model,
        context_tokens=_whole_number(req, "context_tokens"),
        excluded_nodes=req.get_param_as_list("excluded_nodes") or [],
        min_nodes=_whole_number(req, "min_nodes") or 1,
        if_absent=False,
        dry_run=True,
        sharding=sharding,
        kv=kv,
    )


def acknowledgement(answer: Acknowledged) -> CommandDone:
    """Return the leader's acknowledgement, for JSON."""
    fields: CommandDone = {
        "command_id": answer.command_id,
        "term": answer.term,
        "index": answer.index,
        "durability": answer.durability,
    }
    if answer.instance is not None:
        fields["instance"] = answer.instance
    if answer.plan is not None:
        fields["plan"] = answer.plan
    return fields


def _seconds(req: Request, name: str, most: float) -> float:
    """Return a number of seconds from the query, by default 0. Raises BadRequest."""
    try:
        seconds = float(req.get_param(name) or 0.0)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= most:
        raise BadRequest(f"{name}: must be a number of seconds from 0 to {most:g}", field=name)
    return seconds


def _whole_number(req: Request, name: str) -> int | None:
    value = req.get_param(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()) or len(value) > 10 or not 1 <= int(value) < MOST:
        raise bad_field(name, f"must be a whole number from 1 to {MOST - 1}")
    return int(value)
