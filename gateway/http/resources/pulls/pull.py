"""Talks to clients who have a node pull a model: in Ollama's words, and in our own.

A stream begins once it is known that there is something to pull, or after a moment: what is refused
before that is refused with a status. A client that hangs up stops the pull, unless others wait for
it; what came is kept, and pulling again goes on with it. The answer ends once this process lists
the model.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from falcon.asgi import Request, Response
from pydantic import Field

from bus.wire.errors import BadRequest
from bus.wire.ids import NodeId
from bus.wire.messages.readings import PullPhase, PullState
from gateway.cluster.cancels import OwnerSilent
from gateway.cluster.pulling import PullTarget, PullWorkers, pull_target
from gateway.dialects import api_table, dialect, faults, sse
from gateway.dialects.body import Closed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.middleware import (
    COMMAND_BYTES,
    Resource,
    read_body,
    receive_of,
    tell_ignored,
)
from gateway.requests.catalog import ModelCatalog
from gateway.requests.routing import model_named

QUICK_S = 5.0
"""So long a streamed answer waits for its status."""
AGAIN_S = 4.0
NOTICED_S, NOTICED_LOOK_S = 10.0, 0.05
CONTENT_TYPE = "application/x-ndjson"
UNDECIDED = ("waiting", "listing")


class PullBody(Closed):
    """`POST /models/pull`: `to` is a node, by its id or name; without, the one that is asked."""

    model: str = Field(min_length=1, max_length=400)
    revision: str = Field(default="", max_length=200)
    to: str | None = None
    stream: bool = True


class PullEvent(Closed):
    """A line of the stream of `POST /models/pull`, and, with the last `status`, its answer of one
    piece. `eta_s` is known while bytes come; `sources` are the nodes that it is copied from;
    `known_as` is the name of the table that stands for `model`."""

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
        running = _RunningPull(self, req, self.service.bus.speaker.node, target)
        if not asked.stream:
            await running.whole()
            resp.data = endpoint.answer()
            return
        await running.stream(resp, endpoint.streams, endpoint.line, endpoint.error_line)


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
        asked = await self.read(req, PullBody)
        options = self.service.options
        await self.service.catalog.wait_known()
        here = None if asked.revision else model_named(asked.model, self.service.catalog.names())
        if here is not None and "/" not in here:
            text = f"{here} is here already; models of a hub are named OWNER/NAME"
            raise HttpFaultRaised(HttpFault(409, "conflict", text, field="model"))
        target = pull_target(asked.model, asked.revision, options.pull_names)
        node = self._node(asked.to)
        running = _RunningPull(self, req, node, target)

        def told(state: PullState) -> bytes:
            """Return a line."""
            return json_bytes(_event(state, node, target).model_dump(mode="json")) + b"\n"

        if asked.stream:
            await running.stream(resp, CONTENT_TYPE, told, _error_line)
        else:
            resp.data = told(await running.whole())

    def _node(self, word: str | None) -> NodeId:
        """Return the node that is meant. Raises HttpFaultRaised (404) unless it is one."""
        service = self.service
        if word is None:
            return service.bus.speaker.node
        cards = service.readings.cards(service.reactor.now())
        found = {card.node for card in cards if word in (card.node, card.name)}
        if len(found) != 1:
            names = ", ".join(sorted(f"{card.name} ({card.node})" for card in cards))
            what = "more than one node is" if found else "no node is"
            text = f"{what} named {word[:80]!r}; there are {names}"
            raise HttpFaultRaised(HttpFault(404, "node_not_found", text, field="to"))
        return found.pop()


class _RunningPull:
    """One client's pull at a node. Raises HttpFaultRaised where it fails before a word is said."""

    def __init__(self, at: Resource, req: Request, node: NodeId, target: PullTarget) -> None:
        self._service = at.service
        self._target = target
        self._states = PullWorkers(at.service.bus, at.service.readings).follow(node, target)
        self._gone = asyncio.ensure_future(_hang_up(req))
        self._next: asyncio.Future[PullState] | None = None

    async def whole(self) -> PullState:
        """Return the last state, once the model is here."""
        async with contextlib.aclosing(self._until_end()) as states:
            last = None
            async for state in states:
                last = state
        if last is None or last.phase != "done":
            raise HttpFaultRaised(HttpFault(499, "client_closed", "the client hung up"))
        return last

    async def stream(
        self,
        resp: Response,
        content_type: str,
        line: Callable[[PullState], bytes],
        error_line: Callable[[HttpFault], bytes],
    ) -> None:
        """Answer with a line for each state, the last of which is the end."""
        states = self._until_end()
        first: list[PullState] = []
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(QUICK_S):
                while not first or first[-1].phase in UNDECIDED:
                    # shielded: the time is up for us, not for what is waited for
                    self._next = self._next or asyncio.ensure_future(anext(states))
                    state = await asyncio.shield(self._next)
                    self._next = None
                    first.append(state)
        resp.content_type = content_type
        resp.set_headers(sse.HEADERS)
        resp.stream = self._lines(states, first, line, error_line)

    async def _lines(
        self,
        states: AsyncGenerator[PullState],
        first: list[PullState],
        line: Callable[[PullState], bytes],
        error_line: Callable[[HttpFault], bytes],
    ) -> AsyncGenerator[bytes]:
        said, said_at, now = b"", 0.0, asyncio.get_running_loop().time
        try:
            while True:
                if first:
                    state = first.pop(0)
                else:
                    state = await (self._next or anext(states))
                    self._next = None
                # what has not changed is said now and then, so that nobody takes us for dead
                if (told := line(state)) != said or now() - said_at >= AGAIN_S:
                    said, said_at = told, now()
                    yield told
        except StopAsyncIteration:
            return
        except HttpFaultRaised as refused:
            yield error_line(refused.fault)
        finally:
            await self._close(states)

    async def _close(self, states: AsyncGenerator[PullState]) -> None:
        if self._next is not None:
            self._next.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, HttpFaultRaised):
                await self._next
        await states.aclose()

    async def _until_end(self) -> AsyncGenerator[PullState]:
        """Yield states until the model is listed here, or the client is gone. Raises
        HttpFaultRaised."""
        try:
            async with contextlib.aclosing(self._states) as states:
                async for state in states:
                    if self._gone.done():
                        return
                    if state.phase == "failed":
                        raise HttpFaultRaised(faults.of_pull(state))
                    if state.phase == "done":
                        await self._listed()
                    yield state
        except OwnerSilent as silent:
            text = f"{silent.owner} did not answer within {silent.waited_s:g} s; see `shoal nodes`"
            raise HttpFaultRaised(HttpFault(504, "owner_silent", text)) from None
        finally:
            self._gone.cancel()

    async def _listed(self) -> None:
        """Wait until this process knows of the model, for a while."""
        give_up_at = self._service.reactor.now() + NOTICED_S
        while self._target.model not in self._service.catalog.names():
            if self._service.reactor.now() > give_up_at:
                return
            await asyncio.sleep(NOTICED_LOOK_S)


async def _hang_up(req: Request) -> None:
    receive = receive_of(req)
    while (await receive())["type"] != "http.disconnect":
        pass


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
    )


def _error_line(fault: HttpFault) -> bytes:
    error: dict[str, Any] = {"code": fault.code, "message": fault.message, "status": fault.status}
    if fault.retry_after_s is not None:
        error["retry_after_s"] = fault.retry_after_s
    return json_bytes({"error": error}) + b"\n"
