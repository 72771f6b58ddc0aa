"""Talks to clients: makes a node verify the files of a model on its disk.

The node reads all files and compares them with the hashes that the model came with. A model added
by the user has no hashes; its files are only read. If the client disconnects, the check stops,
unless other clients wait for the same check.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from falcon.asgi import Request, Response
from pydantic import Field

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.weights import VerifyPhase, VerifyState
from gateway.control.pulling import Workers
from gateway.dialects.body import Closed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.middleware import Resource
from gateway.http.resources.pulls.running import RunningWork, Telling, error_line
from gateway.http.resources.pulls.target import node_named
from gateway.requests.catalog import whole_model

RETRY_S = 5.0


class VerifyBody(Closed):
    """`POST /models/verify`: `node` is a node that has the model, by id or name; by default this
    node if it has the model, else another."""

    model: str = Field(min_length=1, max_length=400)
    node: str | None = None
    stream: bool = True


class WrongFileTold(Closed):
    """A damaged file, and what is wrong with it."""

    path: str
    what: str


class VerifyEvent(Closed):
    """A line of the stream of `POST /models/verify`. The line of `status` `done` is also the whole
    answer without a stream; its `intact` is the verdict. `against` is `hashes`, or `headers` for a
    model that has no hashes and is only read. `wrong` are the first 20 of `wrong_count` damaged
    files. `unlisted` counts files added to the model since it came; they are only read."""

    status: VerifyPhase
    model: str
    node: str
    completed: int
    total: int
    bytes_per_s: float
    eta_s: float | None
    against: str
    files: int
    intact: bool
    wrong: list[WrongFileTold]
    wrong_count: int
    unlisted: int


class VerifyModel(Resource):
    """`POST /models/verify`: have a node verify a model."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Verify the model at the node of the body, by default at a node with a whole copy."""
        body = await self.read(req, VerifyBody)
        cluster = self.cluster
        await cluster.catalog.wait_known()
        model = whole_model(cluster.catalog, body.model, cluster.reactor.now())
        node = self._node(model, body.node)
        states: AsyncGenerator[VerifyState] = Workers(cluster.bus, cluster.readings).verify(
            node, model
        )

        def line(state: VerifyState) -> bytes:
            return json_bytes(_event(state, node).model_dump(mode="json")) + b"\n"

        running = RunningWork(req, states, Telling(_fault, line, error_line))
        if body.stream:
            await running.stream(resp)
        else:
            resp.data = line(await running.whole())

    def _node(self, model: ModelId, word: str | None) -> NodeId:
        """Return the node that is to verify a model. Raises HttpFaultRaised (404) if `word` names a
        node without the model."""
        cluster = self.cluster
        cards = cluster.readings.cards(cluster.reactor.now())
        models = {card.node: {model_card.model for model_card in card.models} for card in cards}
        having = {card.node: card.name for card in cards if model in models[card.node]}
        own = cluster.bus.speaker.node
        if word is None:
            return own if own in having else min(having)
        node = node_named(cluster, word, "node")
        if node not in having:
            names = ", ".join(sorted(having.values()))
            text = f"{model} is not complete on that node's disk; it is on {names}"
            raise HttpFaultRaised(HttpFault(404, "model_not_found", text, field="node"))
        return node


def _fault(state: VerifyState) -> HttpFault:
    """Return the HTTP error for a model that could not be verified."""
    match state.reason:
        case "busy":
            return HttpFault(429, "busy", state.message, retry_after_s=RETRY_S)
        case "not_here":
            return HttpFault(404, "model_not_found", state.message, field="model")
        case "unreadable" | None:
            return HttpFault(500, "unreadable", state.message)


def _event(state: VerifyState, node: NodeId) -> VerifyEvent:
    left = state.total_bytes - state.done_bytes
    knows = state.phase == "reading" and state.bytes_per_s > 0
    return VerifyEvent(
        status=state.phase,
        model=state.model,
        node=node,
        completed=state.done_bytes,
        total=state.total_bytes,
        bytes_per_s=round(state.bytes_per_s, 1),
        eta_s=round(left / state.bytes_per_s, 1) if knows else None,
        against=state.against,
        files=state.files,
        intact=state.phase == "done" and not state.wrong_count,
        wrong=[WrongFileTold(path=file.path, what=file.what) for file in state.wrong],
        wrong_count=state.wrong_count,
        unlisted=state.unlisted,
    )
