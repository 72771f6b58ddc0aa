"""Talks to clients about the pulls of all nodes: lists, cancels, pauses and resumes them.

A pull in the background continues without clients and after a restart of its node. If it fails or
is paused, it stays in the list until it is resumed or cancelled.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from falcon.asgi import Request, Response
from typing_extensions import TypedDict

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullReading, PullState
from gateway.cluster import Cluster
from gateway.control.pulling import (
    Change,
    change_pulls,
    known_repository,
    nodes_pulling,
    pulls_of,
)
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.callers import key_behind
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.pulls.target import node_named
from gateway.requests.pull_faults import of_pull

NOTICED_S, LOOK_S = 2.0, 0.05
"""How long to wait for the first report of a new pull."""
USER_ENDED = ("paused", "cancelled")


class PullRow(TypedDict):
    """A pull of a node. `state` is its phase, or `paused` or `cancelled`. `code` and `message` say
    why it failed. `eta_s` is null unless bytes arrive. `background`: it continues without
    clients, or can be resumed. `layers`: [first, last) if only these layers are pulled, else
    null. `choice`: which quantisation of a GGUF repository is pulled, and why; else empty."""

    model: str
    node: str
    name: str
    state: str
    background: bool
    revision: str
    completed: int
    total: int
    bytes_per_s: float
    eta_s: float | None
    sources: list[str]
    note: str
    code: str | None
    message: str
    layers: tuple[int, int] | None
    choice: str


class PullsAnswer(TypedDict):
    """The pulls of all nodes, by model and node."""

    pulls: list[PullRow]


class ChangedOnNode(TypedDict):
    """The result on one node. `why` is the reason why nothing changed; empty if it did."""

    node: str
    name: str
    deleted_bytes: int
    why: str


class PullChangeAnswer(TypedDict):
    """The change of a model's pulls, with the result of each node that pulls it."""

    model: str
    change: Change
    nodes: list[ChangedOnNode]


class PullChangeBody(Closed):
    """`POST /models/pulls/{name}`: `node` is a node, by id or name; by default all nodes that pull
    the model."""

    change: Literal["pause", "resume"]
    node: str | None = None


class PullList(Resource):
    """`GET /models/pulls`: the pulls of all nodes."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with each pull that runs, failed, was paused, or ended a moment ago."""
        cluster = self.cluster
        names = _names(cluster)
        rows = [_row(node, names, state) for node, state in pulls_of(_readings(cluster))]
        answer: PullsAnswer = {"pulls": rows}
        answer_json(resp, answer)


class PullOfPath(Resource):
    """`/models/pulls/{name}`: the pulls of a model on all nodes."""

    async def on_post(self, req: Request, resp: Response, name: str) -> None:
        """Pause or resume the pulls of the model."""
        body = await self.read(req, PullChangeBody)
        await self._change(req, resp, name, body.change, body.node)

    async def on_delete(self, req: Request, resp: Response, name: str) -> None:
        """Cancel the pulls of the model, and delete its partial files."""
        await self._change(req, resp, name, "cancel", req.get_param("node"))

    async def _change(
        self, req: Request, resp: Response, name: str, change: Change, word: str | None
    ) -> None:
        cluster = self.cluster
        only = None if word is None else node_named(cluster, word, "node")
        model, nodes = await _pulling(cluster, name, only)
        gathered = await change_pulls(cluster.calls, nodes, model, change, key=key_behind(req))
        names = _names(cluster)
        results: list[ChangedOnNode] = []
        for node in nodes:
            reply, failure = gathered.replies.get(node), gathered.failures.get(node)
            results.append(
                {
                    "node": node,
                    "name": names.get(node, node),
                    "deleted_bytes": 0 if reply is None else reply.deleted_bytes,
                    "why": str(failure) if reply is None else reply.why,
                }
            )
        if all(result["why"] for result in results):
            text = "; ".join(f"{result['name']}: {result['why']}" for result in results)
            raise HttpFaultRaised(HttpFault(409, "conflict", f"cannot {change} {model}: {text}"))
        answer: PullChangeAnswer = {"model": model, "change": change, "nodes": results}
        answer_json(resp, answer)


async def _pulling(
    cluster: Cluster, name: str, only: NodeId | None
) -> tuple[ModelId, list[NodeId]]:
    """Return the model of that name and the nodes that pull it. Raises HttpFaultRaised (404)."""
    plain = name.removesuffix(":latest")
    repository = known_repository(plain, cluster.options.pull_names)
    wanted = {plain.casefold(), (repository or plain).casefold()}
    give_up_at = cluster.reactor.now() + NOTICED_S
    while True:
        pulls = pulls_of(_readings(cluster))
        models = {state.model for _, state in pulls if state.model.casefold() in wanted}
        for model in sorted(models):
            nodes = [node for node in nodes_pulling(model, pulls) if only in (None, node)]
            if nodes:
                return model, nodes
        if cluster.reactor.now() > give_up_at:
            where = "no node" if only is None else f"node {_names(cluster).get(only, only)}"
            text = f"{where} has a pull of {name[:200]!r}"
            raise HttpFaultRaised(HttpFault(404, "pull_not_found", text))
        await asyncio.sleep(LOOK_S)


def _readings(cluster: Cluster) -> list[PullReading]:
    return cluster.readings.fresh(PullReading, cluster.reactor.now())


def _names(cluster: Cluster) -> dict[NodeId, str]:
    return {card.node: card.name for card in cluster.readings.cards(cluster.reactor.now())}


def _row(node: NodeId, names: dict[NodeId, str], state: PullState) -> PullRow:
    left = state.total_bytes - state.done_bytes
    arrives = state.phase in ("fetching", "copying") and state.bytes_per_s > 0
    has_failed, reason = state.phase == "failed", state.reason
    return {
        "model": state.model,
        "node": node,
        "name": names.get(node, node),
        "state": reason if has_failed and reason in USER_ENDED else state.phase,
        "background": state.background,
        "revision": state.revision,
        "completed": state.done_bytes,
        "total": state.total_bytes,
        "bytes_per_s": round(state.bytes_per_s, 1),
        "eta_s": round(left / state.bytes_per_s, 1) if arrives else None,
        "sources": list(state.sources),
        "note": state.note,
        "code": of_pull(state).code if has_failed else None,
        "message": state.message,
        "layers": state.layers,
        "choice": state.choice,
    }
