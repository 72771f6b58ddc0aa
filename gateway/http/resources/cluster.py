"""Talks to clients about the cluster as this process sees it: state, queue, health, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from falcon.asgi import Request, Response
from pydantic import BaseModel
from typing_extensions import TypedDict

from bus.calls.table import READ_OPEN_REQUESTS
from bus.links.traffic import Crossed, read_traffic
from bus.process.stalls import StallCounts, read_stalls
from bus.replica.state import ClusterState
from bus.wire.accelerators import HardwareReading
from bus.wire.api_keys import KEYS_LOST_WORDS, keys_were_lost
from bus.wire.calls.processes import ReadOpenRequests
from bus.wire.cards import NodeCard
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import (
    DemandReading,
    LinkReading,
    NodeReading,
    PullReading,
    RunnerReading,
    UndoneReading,
    WeightsReading,
)
from bus.wire.messages.weights import StorageReading
from bus.wire.pool import PoolReading
from gateway.cluster import Cluster
from gateway.dialects import faults
from gateway.dialects.encode import Dump
from gateway.dialects.faults import HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.exchange import Parts
from gateway.http.callers import caller_of
from gateway.http.middleware import Resource, answer_json
from gateway.view import metrics
from gateway.view.options import Options
from gateway.view.readings import hardware_of, pool_of, storage_of
from gateway.view.watch import NodeHealth, grave_problems, node_health

WITHHELD = frozenset({"api_keys"})
"""Fields of the state that are never sent to clients."""
NO_KEY = (
    "this node has no API key, so only its owner can send requests; create one with "
    "`shoal apikey add NAME` on the node"
)


class ReadingsTold(TypedDict):
    """The latest readings, by kind. The readings of a kind are a map by node, or a list."""

    nodes: dict[str, Annotated[dict[str, Any], Dump(NodeReading, adds=(("age_s", "number"),))]]
    hardware: dict[str, Annotated[dict[str, Any], Dump(HardwareReading)]]
    runners: list[Annotated[dict[str, Any], Dump(RunnerReading)]]
    cards: list[Annotated[dict[str, Any], Dump(NodeCard)]]
    peers: dict[str, Annotated[dict[str, Any], Dump(PeersReading)]]
    links: dict[str, Annotated[dict[str, Any], Dump(LinkReading)]]
    demand: list[Annotated[dict[str, Any], Dump(DemandReading)]]
    pool: list[Annotated[dict[str, Any], Dump(PoolReading)]]
    weights: list[Annotated[dict[str, Any], Dump(WeightsReading)]]
    pulls: list[Annotated[dict[str, Any], Dump(PullReading)]]
    storage: list[Annotated[dict[str, Any], Dump(StorageReading)]]
    undone: list[Annotated[dict[str, Any], Dump(UndoneReading)]]


class StateAnswer(TypedDict):
    """The mirrored state without API keys, the latest readings, and the health of each node.
    `live`: this process receives the leader's changes of the state."""

    state: Annotated[dict[str, Any], Dump(ClusterState, without=WITHHELD)]
    node: str
    holder: str | None
    live: bool
    telemetry: ReadingsTold
    nodeHealth: dict[str, NodeHealth]


class QueueOfInstance(TypedDict):
    """The load of an instance; `best_waiting_priority` is null if no request waits."""

    instance: str | None
    model: str | None
    running: int
    waiting: int
    max_running: int
    max_waiting: int
    best_waiting_priority: int | None
    tokens_per_s: float


class OpenRequestTold(TypedDict):
    """An open request. `instance` is null while the request waits for an instance, and if a
    provider answers it. `waiting`: the answer has not begun. `provider` is null for a model of the
    cluster. `spill`: when a waiting request goes to a provider, or why it does not; null if nothing
    is configured."""

    request: str
    model: str
    client: str | None
    priority: int
    instance: str | None
    waiting: bool
    tokens: int
    seconds: float
    provider: str | None
    spill: str | None


class QueueAnswer(TypedDict):
    """Running and waiting requests; `requests` are the open requests of this node's gateway."""

    running: int
    waiting: int
    instances: list[QueueOfInstance]
    requests: list[OpenRequestTold]


class HealthOfRank(TypedDict):
    """A rank on this node."""

    instance: str | None
    model: str | None
    rank: int
    phase: str
    running: int
    waiting: int


class QueueLengths(TypedDict):
    """Running and waiting requests of the instances whose rank 0 is on this node."""

    running: int
    waiting: int


class HealthWord(TypedDict):
    """The health of a process."""

    status: Literal["ok", "degraded"]


class HealthInFull(HealthWord):
    """The health of a process and its node; `load_1m` is null while it is unknown."""

    problems: list[str]
    node: str
    name: str
    version: str
    open_requests: int
    queue: QueueLengths
    load_1m: float | None
    ranks: list[HealthOfRank]
    models_ready: list[str]


HealthAnswer = HealthInFull | HealthWord


class CancelAnswer(TypedDict):
    """A stopped request."""

    id: str
    cancelled: Literal[True]


class NodeIdentity(Resource):
    """`GET /node_id`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the id of this node, as a JSON string."""
        answer_json(resp, self.cluster.options.node)


class StateResource(Resource):
    """`GET /state`: the mirrored state, the latest readings, each node's health."""

    async def on_get(self, req: Request, resp: Response) -> None:
        cluster = self.cluster
        state, readings, now = cluster.bus.state, cluster.readings, cluster.reactor.now()
        of_nodes = {str(reading.node): (reading, age_s) for reading, age_s in readings.nodes(now)}
        nodes = sorted({*state.nodes, *of_nodes, *(str(card.node) for card in readings.cards(now))})
        peers, links = readings.peers(now), readings.links(now)
        hardware = hardware_of(readings, now)
        amiss = await self.watch.record_problems()
        answer: StateAnswer = {
            "state": state.model_dump(mode="json", exclude=set(WITHHELD)),
            "node": cluster.options.node,
            "holder": cluster.bus.mirror.holder,
            "live": cluster.bus.mirror.live,
            "telemetry": {
                "nodes": {
                    node: {**reading.model_dump(mode="json"), "age_s": round(age_s, 3)}
                    for node, (reading, age_s) in of_nodes.items()
                },
                "hardware": {
                    node: sensors.model_dump(mode="json") for node, sensors in hardware.items()
                },
                "runners": _plain(readings.runners(now)),
                "cards": _plain(readings.cards(now)),
                "peers": {str(peer.node): peer.model_dump(mode="json") for peer in peers},
                "links": {str(link.node): link.model_dump(mode="json") for link in links},
                "demand": _plain(readings.demands(now)),
                "pool": _plain([pool] if (pool := pool_of(readings, now)) else []),
                "weights": _plain(readings.weights(now)),
                "pulls": _plain(readings.fresh(PullReading, now)),
                "storage": _plain(storage_of(readings, now)),
                "undone": _plain(readings.undone(now)),
            },
            "nodeHealth": {
                node: node_health(
                    *of_nodes.get(node, (None, 0.0)),
                    amiss if node == cluster.options.node else (),
                )
                for node in nodes
            },
        }
        answer_json(resp, answer)


class QueueResource(Resource):
    """`GET /queue`: running and waiting requests, at runners and in this gateway."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with counts, and one line per open request of this node's gateway."""
        cluster = self.cluster
        runners = cluster.catalog.serving()
        replies = await cluster.near.ask_each(
            cluster.options.processes, READ_OPEN_REQUESTS, ReadOpenRequests()
        )
        rows = [row for reply in replies.values() for row in reply.requests]
        answer: QueueAnswer = {
            "running": sum(runner.running for runner in runners),
            "waiting": sum(runner.waiting for runner in runners)
            + sum(1 for row in rows if row.instance is None and row.provider is None),
            "instances": [
                {
                    "instance": runner.instance,
                    "model": runner.model,
                    "running": runner.running,
                    "waiting": runner.waiting,
                    "max_running": runner.max_running,
                    "max_waiting": runner.max_waiting,
                    "best_waiting_priority": runner.best_waiting_priority,
                    "tokens_per_s": runner.generation_tokens_per_s,
                }
                for runner in runners
            ],
            "requests": [
                cast(OpenRequestTold, row.model_dump())
                for row in sorted(rows, key=lambda row: -row.seconds)
            ],
        }
        answer_json(resp, answer)


class HealthResource(Resource):
    """`GET /health`: the health of this process; reads only memory."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer 200 while the process serves, with a status word. If API keys are required, only
        clients with a key get more than the word."""
        cluster, parts, records = self.cluster, self.parts, self.records
        readings, now, own = cluster.readings, cluster.reactor.now(), cluster.options.node
        mine = next((reading for reading, _ in readings.nodes(now) if reading.node == own), None)
        problems = [
            *_problems(cluster, parts),
            *records.of_node.condition.problems,
            *([": ".join(KEYS_LOST_WORDS)] if keys_were_lost(cluster.api_keys.book.keys) else ()),
            *grave_problems(mine),
        ]
        word: HealthWord = {"status": "degraded" if problems else "ok"}
        if caller_of(req) is None:
            answer_json(resp, word)
            return
        runners = [runner for runner in readings.runners(now) if runner.node == own]
        leads = [runner for runner in runners if not runner.rank]
        answer: HealthInFull = {
            **word,
            "problems": problems,
            "node": cluster.options.node,
            "name": cluster.options.node_name,
            "version": cluster.options.version,
            "open_requests": len(parts.dispatcher.requests),
            "queue": {
                "running": sum(lead.running for lead in leads),
                "waiting": sum(lead.waiting for lead in leads),
            },
            "load_1m": None if mine is None else mine.load_1m,
            "ranks": [
                {
                    "instance": runner.instance,
                    "model": runner.model,
                    "rank": runner.rank,
                    "phase": runner.phase,
                    "running": runner.running,
                    "waiting": runner.waiting,
                }
                for runner in runners
            ],
            "models_ready": sorted(
                {
                    str(instance.model)
                    for instance in cluster.bus.state.instances.values()
                    if instance.status == "ready" and instance.serves
                }
            ),
        }
        answer_json(resp, answer)


class LiveResource(Resource):
    """`GET /livez`: always 200 while the event loop runs."""

    async def on_get(self, req: Request, resp: Response) -> None:
        resp.text = "ok"
        resp.content_type = "text/plain"


class ReadyResource(Resource):
    """`GET /readyz`: whether this process accepts requests."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer 200, or 503 with the reasons."""
        problems = _problems(self.cluster, self.parts)
        resp.status = 503 if problems else 200
        resp.text = "\n".join(problems) or "ok"
        resp.content_type = "text/plain"


class MetricsResource(Resource):
    """`GET /metrics`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with Prometheus's text for all processes of this node. It has no figures of other
        nodes. Otherwise a sum over all nodes would count those figures more than once."""
        cluster, parts = self.cluster, self.parts
        node, readings, now = cluster.options.node, cluster.readings, cluster.reactor.now()
        ranks = [
            rank for rank in readings.ranks(cluster.bus.state.instances, now) if rank.node == node
        ]
        demands = [demand for demand in readings.demands(now) if demand.node == node]
        sensors = hardware_of(readings, now).get(node)
        links = next((link for link in readings.links(now) if link.node == node), None)
        stalls, crossed = await asyncio.to_thread(_counted, cluster.options)
        traffic = metrics.NodeTraffic(node, crossed)
        resp.data = parts.metrics.render(ranks, demands, stalls, sensors, links, traffic)
        resp.content_type = metrics.CONTENT_TYPE


def _counted(
    options: Options,
) -> tuple[dict[str, StallCounts], dict[str, tuple[Crossed, ...]]]:
    """Return the counts in the files of this node's processes: stalls, and bytes over links.
    Blocks."""
    folder = Path(options.endpoints.folder)
    return read_stalls(folder), read_traffic(folder)


class CancelResource(Resource):
    """`POST /v1/cancel/{id}` (DELETE works as well)."""

    async def on_post(self, req: Request, resp: Response, request_id: str) -> None:
        """Stop the request, also if another node's gateway owns it. The client of that request gets
        an ordinary end. A repeated call gets the same answer. 404: no such open request. 504: the
        process that has the request does not answer."""
        request = request_id_of(request_id)
        if not await self.cluster.cancels.stop(request):
            raise HttpFaultRaised(faults.not_found(f"an open request '{request_id}'"))
        stopped: CancelAnswer = {"id": request_id, "cancelled": True}
        answer_json(resp, stopped)

    async def on_delete(self, req: Request, resp: Response, request_id: str) -> None:
        """Stop the request, like `POST`."""
        await self.on_post(req, resp, request_id)


def _plain(readings: Sequence[BaseModel]) -> list[dict[str, Any]]:
    return [reading.model_dump(mode="json") for reading in readings]


def _problems(cluster: Cluster, parts: Parts) -> list[str]:
    problems: list[str] = []
    if parts.dispatcher.draining:
        problems.append("this gateway is shutting down")
    if not cluster.bus.mirror.live:
        problems.append("the node has no cluster state yet; check that `master` is running")
    elif cluster.options.asks_for_keys and not (cluster.options.keys or cluster.api_keys.book.keys):
        problems.append(NO_KEY)
    cards, own = cluster.readings.cards(cluster.reactor.now()), cluster.options.node
    problems += [
        f"this node {card.cannot_run}" for card in cards if card.node == own and card.cannot_run
    ]
    return problems
