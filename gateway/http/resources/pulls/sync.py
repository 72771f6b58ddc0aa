"""Talks to clients who have nodes copy models from others that have them: `POST /models/sync`.

All is looked at before anything moves: names, nodes, what is there already, room on the disks. One
copy that fails ends none of the others, and is named at the end. A client that hangs up stops what
has not ended; what came is kept, and asking again goes on with it.
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
from gateway.cluster.pulling import (
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
from gateway.service import HttpService

MOST_MODELS = 256
LISTED_S, LISTED_LOOK_S = 10.0, 0.05
Name = Annotated[str, Field(min_length=1, max_length=400)]


class SyncBody(Closed):
    """`POST /models/sync`: `models` that lie on any node's disk; none named: all on the disk of the
    node that is asked, but what comes with shoal. `to` is a node, by its id or name, or `all`."""

    models: list[Name] = Field(default=[], max_length=MOST_MODELS)
    to: str = Field(min_length=1, max_length=200)
    stream: bool = True


class SyncEvent(Closed):
    """A line of the stream of `POST /models/sync`: how far one copy is. `sources` are the nodes
    that it comes from; a copy that `failed` has a `message`."""

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
    """The first line of the stream of `POST /models/sync`: what is to come, in all `total` bytes,
    and what is `there` already."""

    status: Literal["planned"] = "planned"
    copies: list[SyncedModel]
    there: list[SyncedModel]
    total: int


class SyncEnd(Closed):
    """What `POST /models/sync` answers whole, and the last line of its stream: what came, and what
    was `there` already."""

    status: Literal["done"] = "done"
    copied: list[SyncedModel]
    there: list[SyncedModel]


class SyncLine(RootModel[SyncPlanned | SyncEvent | SyncEnd]):
    """A line of the stream of `POST /models/sync`."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A line that is to be told; the whole has failed for the reason of `failed`, the first copy
    that did, and with `message`."""

    phase: Literal["copying", "done", "failed"]
    line: SyncPlanned | SyncEvent | SyncEnd | None = None
    failed: PullState | None = None
    message: str = ""


class SyncModels(Resource):
    """`POST /models/sync`: have nodes copy models from each other."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Copy what is lacking to the node that is named, or to all."""
        asked = await self.read(req, SyncBody)
        service = self.service
        await service.catalog.wait_known()
        plan = self._plan(asked)

        async def listed() -> None:
            """Wait until this process knows that the copies are there, for a while."""
            give_up_at = service.reactor.now() + LISTED_S
            while not _is_known(service, plan) and service.reactor.now() < give_up_at:
                await asyncio.sleep(LISTED_LOOK_S)

        ask = Workers(service.bus, service.readings).copy
        steps = _steps(ask, plan, _names(service))
        running = RunningWork(req, steps, Telling(_fault, _line, error_line, listed=listed))
        if asked.stream:
            await running.stream(resp)
        else:
            resp.data = _line(await running.whole())

    def _plan(self, asked: SyncBody) -> SyncPlan:
        """Return what is to be copied. Raises HttpFaultRaised where that cannot be."""
        service, now = self.service, self.service.reactor.now()
        cards = service.readings.cards(now)
        if asked.to == ALL:
            targets = sorted(card.node for card in cards)
        else:
            targets = [node_named(service, asked.to, "to")]
        if len(cards) == 1:
            raise HttpFaultRaised(_refused("to", "there is no other node; see `shoal nodes`"))
        free_bytes = {
            reading.node: reading.disk_free_bytes
            for reading in service.readings.fresh(NodeReading, now)
        }
        plan = sync_plan(self._models(asked), targets, cards, free_bytes)
        if isinstance(plan, Refusal):
            raise HttpFaultRaised(faults.of_refusal(plan))
        return plan

    def _models(self, asked: SyncBody) -> list[ModelId]:
        catalog = self.service.catalog
        if asked.models:
            return [catalog.named(name) for name in asked.models]
        own, now = self.service.bus.speaker.node, self.service.reactor.now()
        here = (card.models for card in self.service.readings.cards(now) if card.node == own)
        found = sorted(model.model for models in here for model in models if not model.bundled)
        if not found:
            text = "this node has only the bundled model; name a model of another node"
            raise HttpFaultRaised(_refused("models", text))
        return found


async def _steps(
    ask: AskForCopy, plan: SyncPlan, names: dict[NodeId, str]
) -> AsyncGenerator[_Step]:
    """Have it done, and yield each line; the last is the end."""
    there = [_told(one) for one in plan.there]
    total = sum(one.size_bytes for one in plan.wanted)
    planned = SyncPlanned(copies=[_told(one) for one in plan.wanted], there=there, total=total)
    yield _Step("copying", planned)
    came: list[CopyAt] = []
    failed: list[CopyState] = []
    async with contextlib.aclosing(copied(ask, plan.wanted)) as told:
        async for one in told:
            if one.state.phase == "done":
                came.append(one.copy)
            elif one.state.phase == "failed":
                failed.append(one)
            yield _Step("copying", _event(one))
    if failed:
        said = "; ".join(
            f"{one.copy.model} to {names.get(one.copy.node, one.copy.node)}: {one.state.message}"
            for one in failed
        )
        text = f"{len(failed)} of {len(plan.wanted)} copies failed: {said}"
        yield _Step("failed", failed=failed[0].state, message=text)
    else:
        yield _Step("done", SyncEnd(copied=[_told(one) for one in came], there=there))


def _names(service: HttpService) -> dict[NodeId, str]:
    return {card.node: card.name for card in service.readings.cards(service.reactor.now())}


def _is_known(service: HttpService, plan: SyncPlan) -> bool:
    cards = service.readings.cards(service.reactor.now())
    lying = {(card.node, model.model) for card in cards for model in card.models}
    return all((one.node, one.model) in lying for one in plan.wanted)


def _refused(field: str, text: str) -> HttpFault:
    return HttpFault(400, "invalid_value", text, field=field)


def _fault(step: _Step) -> HttpFault:
    assert step.failed is not None, "what failed says why"
    return faults.of_pull(step.failed.model_copy(update={"message": step.message}))


def _line(step: _Step) -> bytes:
    assert step.line is not None, "what has not failed has a line"
    return json_bytes(step.line.model_dump(mode="json")) + b"\n"


def _told(one: CopyAt) -> SyncedModel:
    return SyncedModel(model=one.model, node=one.node, bytes=one.size_bytes)


def _event(one: CopyState) -> SyncEvent:
    state = one.state
    total = state.total_bytes or one.copy.size_bytes
    knows = state.phase == "copying" and state.bytes_per_s > 0
    return SyncEvent(
        status=state.phase,
        model=one.copy.model,
        node=one.copy.node,
        completed=state.done_bytes,
        total=total,
        bytes_per_s=round(state.bytes_per_s, 1),
        eta_s=round((total - state.done_bytes) / state.bytes_per_s, 1) if knows else None,
        sources=list(state.sources),
        message=state.message or state.note,
    )
