"""Talks to clients about the cluster's metrics, as JSON or as a stream. Reads and writes, in
threads, the file of the last hour's metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

from falcon.asgi import Request, Response
from typing_extensions import TypedDict

from gateway.cluster import Cluster
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.figures.streaming import answer_each_snapshot
from gateway.view.watch import EVERY_S, HistoryFile, HistoryKeeper, HistoryPoint
from gateway.view.watching import Watch


class HistoryAnswer(TypedDict):
    """The points of the last hour."""

    node: str
    every_s: float
    points: list[HistoryPoint]


class MetricsSnapshot(Resource):
    """`GET /metrics/snapshot`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the latest snapshot, at most a second old."""
        resp.data = await self.watch.snapshots.latest()
        resp.set_header("cache-control", "no-store")


class MetricsStream(Resource):
    """`GET /metrics/stream`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Stream a snapshot each second, as events `snapshot`. 429 at the limit of readers."""
        answer_each_snapshot(req, resp, self.watch.snapshots, "snapshot", lambda made: made)


class MetricsHistory(Resource):
    """`GET /metrics/history`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the points of the last hour, also from before a restart of the gateway. 503
        if they cannot be read."""
        path = self.cluster.options.history_file
        try:
            points = await asyncio.to_thread(HistoryFile(Path(path)).points) if path else []
        except OSError as error:
            text = f"cannot read the history: {error}"
            raise HttpFaultRaised(HttpFault(503, "history_unreadable", text)) from error
        history: HistoryAnswer = {
            "node": self.cluster.options.node,
            "every_s": EVERY_S,
            "points": points,
        }
        answer_json(resp, history)
        resp.set_header("cache-control", "no-store")


def keep_history(cluster: Cluster, watch: Watch) -> None:
    """Store the cluster's metrics at regular intervals. Only one HTTP process of a gateway does so.
    A write error is logged once."""
    path = cluster.options.history_file
    if not path or cluster.near.number != 0:
        return
    keeper = HistoryKeeper(HistoryFile(Path(path)), watch.snapshots.latest)
    noting: set[asyncio.Task[None]] = set()
    logged: set[str] = set()

    async def note() -> None:
        try:
            await keeper.note()
        except OSError as error:
            if str(error) not in logged:
                logged.add(str(error))
                cluster.log.warning(f"cannot store the history: {error}")

    def begin() -> None:
        """Start to store a point; `noting` holds the task until it is done."""
        task = asyncio.ensure_future(note())
        noting.add(task)
        task.add_done_callback(noting.discard)

    cluster.reactor.every(EVERY_S, begin)
