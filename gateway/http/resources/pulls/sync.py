"""Talks to clients: makes nodes copy models from other nodes (`POST /models/sync`).

shoal first checks everything: model names, nodes, copies that exist already, and disk space. If one
copy fails, the other copies continue, and the last line of the answer reports the failure. If the
client disconnects, unfinished copies stop. The received bytes are kept, and the next request
resumes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Literal

from falcon.asgi import Request, Response
from pydantic import Field, RootModel

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import NodeReading, PullPhase, PullState
from gateway.cluster import Cluster
from gateway.control.pulling import (
    AskForCopy,
    CopyAt,
    CopyState,
    SyncPlan,
    Workers,
    copied,
    sync_plan,
)
from gateway.dialects import faults
from gateway.dialects.body import Closed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.middleware import Resource
from gateway.http.resources.pulls.running import RunningWork, Telling, error_line
from gateway.http.resources.pulls.store import ALL
from gateway.http.resources.pulls.target import node_named
from gateway.requests.catalog import whole_model
from gateway.requests.pull_faults import of_pull

MOST_MODELS = 256
LISTED_S, LISTED_LOOK_S = 10.0, 0.05
Name = Annotated[str, Field(min_length=1, max_length=400)]


class SyncBody(Closed):
    """`POST /models/sync`: `models` on any node's disk; by default all models on this node's disk
    except the bundled one. `to` is a node, by id or name, or `all`."""

    models: list[Name] = Field(default=[], max_length=MOST_MODELS)
    to: str = Field(min_length=1, max_length=200)
    stream: bool = True


class SyncEvent(Closed):
    """A line of the stream of `POST /models/sync`: the progress of one copy. `sources` are the
    nodes that send the model; a `failed` copy has a `message`."""

    status: PullPhase
    model: str
    node: str
    completed: int
    total: int
    bytes_per_s: float
    eta_s: float | None
    sources: list[str]
    message: str


class SyncedModel(Closed):
    """A model on a node's disk."""

    model: str
    node: str
    bytes: int


class SyncPlanned(Closed):
    """The first line of the stream of `POST /models/sync`: the planned copies with their `total`
    bytes, and the models that are `there` already."""

    status: Literal["planned"] = "planned"
    copies: list[SyncedModel]
    there: list[SyncedModel]
    total: int


class SyncEnd(Closed):
    """The whole answer of `POST /models/sync`, and the last line of its stream: the finished
    copies, and the models that were `there` already."""

    status: Literal["done"] = "done"
    copied: list[SyncedModel]
    there: list[SyncedModel]


class SyncLine(RootModel[SyncPlanned | SyncEvent | SyncEnd]):
    """A line of the stream of `POST /models/sync`."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of the request. It has either a `line` of the stream, or, if copies failed, the final
    state `failed` of the first failed copy and the `message` about all of them."""

    phase: Literal["copying", "done", "failed"]
    line: SyncPlanned | SyncEvent | SyncEnd | None = None
    failed: PullState | None = None
    message: str = ""


class SyncModels(Resource):
    """`POST /models/sync`: have nodes copy models from each other."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Copy the missing models to the node of the body, or to all nodes."""
        body = await self.read(req, SyncBody)
        cluster = self.cluster
        await cluster.catalog.wait_known()
        plan = self._plan(body)

        async def listed() -> None:
            """Wait until this process lists the copies, at most `LISTED_S`."""
            give_up_at = cluster.reactor.now() + LISTED_S
            while not _is_known(cluster, plan) and cluster.reactor.now() < give_up_at:
                await asyncio.sleep(LISTED_LOOK_S)

        ask = Workers(cluster.bus, cluster.readings).copy
        steps = _steps(ask, plan, _names(cluster))
        running = RunningWork(req, steps, Telling(_fault, _line, error_line, listed=listed))
        if body.stream:
            await running.stream(resp)
        else:
            resp.data = _line(await running.whole())

    def _plan(self, body: SyncBody) -> SyncPlan:
        """Return the copies to make. Raises HttpFaultRaised if a check fails."""
        cluster, now = self.cluster, self.cluster.reactor.now()
        cards = cluster.readings.cards(now)
        if body.to == ALL:
            targets = sorted(card.node for card in cards)
        else:
            targets = [node_named(cluster, body.to, "to")]
        if len(cards) == 1:
            raise HttpFaultRaised(_refused("to", "there is no other node; see `shoal nodes`"))
        free_bytes = {
            reading.node: reading.disk_free_bytes
            for reading in cluster.readings.fresh(NodeReading, now)
        }
        plan = sync_plan(self._models(body), targets, cards, free_bytes)
        if isinstance(plan, Refusal):
            raise HttpFaultRaised(faults.of_refusal(plan))
        return plan

    def _models(self, body: SyncBody) -> list[ModelId]:
        catalog = self.cluster.catalog
        if body.models:
            now = self.cluster.reactor.now()
            return [whole_model(catalog, name, now) for name in body.models]
        own, now = self.cluster.bus.speaker.node, self.cluster.reactor.now()
        here = (card.models for card in self.cluster.readings.cards(now) if card.node == own)
        names = sorted(model.model for models in here for model in models if not model.bundled)
        if not names:
            text = "this node has only the bundled model; name a model of another node"
            raise HttpFaultRaised(_refused("models", text))
        return names


async def _steps(
    ask: AskForCopy, plan: SyncPlan, names: dict[NodeId, str]
) -> AsyncGenerator[_Step]:
    """Make the copies, and yield each line; the last one is the end."""
    there = [_synced(copy) for copy in plan.there]
    total = sum(copy.size_bytes for copy in plan.wanted)
    planned = SyncPlanned(copies=[_synced(copy) for copy in plan.wanted], there=there, total=total)
    yield _Step("copying", planned)
    came: list[CopyAt] = []
    failures: list[CopyState] = []
    async with contextlib.aclosing(copied(ask, plan.wanted)) as updates:
        async for update in updates:
            if update.state.phase == "done":
                came.append(update.copy)
            elif update.state.phase == "failed":
                failures.append(update)
            yield _Step("copying", _event(update))
    if failures:
        reasons = "; ".join(
            f"{failure.copy.model} to {names.get(failure.copy.node, failure.copy.node)}: "
            f"{failure.state.message}"
            for failure in failures
        )
        text = f"{len(failures)} of {len(plan.wanted)} copies failed: {reasons}"
        yield _Step("failed", failed=failures[0].state, message=text)
    else:
        yield _Step("done", SyncEnd(copied=[_synced(copy) for copy in came], there=there))


def _names(cluster: Cluster) -> dict[NodeId, str]:
    return {card.node: card.name for card in cluster.readings.cards(cluster.reactor.now())}


def _is_known(cluster: Cluster, plan: SyncPlan) -> bool:
    cards = cluster.readings.cards(cluster.reactor.now())
    listed = {(card.node, model.model) for card in cards for model in card.models}
    return all((copy.node, copy.model) in listed for copy in plan.wanted)


def _refused(field: str, text: str) -> HttpFault:
    return HttpFault(400, "invalid_value", text, field=field)


def _fault(step: _Step) -> HttpFault:
    assert step.failed is not None, "the step has no failed copy"
    return of_pull(step.failed.model_copy(update={"message": step.message}))


def _line(step: _Step) -> bytes:
    assert step.line is not None, "the step has no line"
    return json_bytes(step.line.model_dump(mode="json")) + b"\n"


def _synced(copy: CopyAt) -> SyncedModel:
    return SyncedModel(model=copy.model, node=copy.node, bytes=copy.size_bytes)


def _event(progress: CopyState) -> SyncEvent:
    state = progress.state
    total = state.total_bytes or progress.copy.size_bytes
    knows = state.phase == "copying" and state.bytes_per_s > 0
    return SyncEvent(
        status=state.phase,
        model=progress.copy.model,
        node=progress.copy.node,
        completed=state.done_bytes,
        total=total,
        bytes_per_s=round(state.bytes_per_s, 1),
        eta_s=round((total - state.done_bytes) / state.bytes_per_s, 1) if knows else None,
        sources=list(state.sources),
        message=state.message or state.note,
    )
