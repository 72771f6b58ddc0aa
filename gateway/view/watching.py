"""Talks to the event loop: what clients can watch of the cluster as it happens.

`Watch` has the streams: snapshots of the whole cluster, its events, and its latest loads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bus.calls import ProcessCalls
from bus.calls.table import READ_PROBLEMS
from bus.client import BusClient
from bus.process.clock import wall
from bus.wire.calls.processes import ReadProblems
from gateway.view.counters import Counters, RecentMinute
from gateway.view.metrics import read_totals
from gateway.view.options import Options
from gateway.view.readings import ClusterReadings
from gateway.view.watch import ClusterSeen, SnapshotAnswer, SnapshotFeed, follow_log, snapshot_of


class Watch:
    """Snapshots, events and loads of the cluster, as one HTTP process sees it. `near` reaches the
    HTTP processes of this node; `render` turns a snapshot into JSON."""

    def __init__(
        self,
        options: Options,
        bus: BusClient,
        readings: ClusterReadings,
        counters: Counters,
        near: ProcessCalls,
        render: Callable[[SnapshotAnswer], bytes],
    ) -> None:
        self.options, self.reactor = options, bus.reactor
        self._bus, self._readings, self._near, self._render = bus, readings, near, render
        self._minute = RecentMinute(self.reactor.now())
        self.snapshots = SnapshotFeed(self._snapshot, self.reactor)
        self.loads, self.events = follow_log(bus, self.reactor, bus.speaker, counters)

    async def record_problems(self) -> list[str]:
        """Return the problems of the node's records that any of its HTTP processes reports, without
        repeats."""
        replies = await self._near.ask_each(self.options.processes, READ_PROBLEMS, ReadProblems())
        return [*dict.fromkeys(text for reply in replies.values() for text in reply.problems)]

    def close(self) -> None:
        """End all streams."""
        self.snapshots.close()
        self.events.close()

    async def _snapshot(self) -> bytes:
        """Return the snapshot of the cluster as JSON."""
        totals = await asyncio.get_running_loop().run_in_executor(None, read_totals)
        amiss = await self.record_problems()
        seen = ClusterSeen(
            node=self.options.node,
            state=self._bus.state,
            holder=self._bus.mirror.holder,
            live=self._bus.mirror.live,
            readings=self._readings,
            totals=totals,
            now=self.reactor.now(),
            at_s=wall(),
            amiss=amiss,
            queue_max=self.options.max_waiting * self.options.processes,
            recent=self._minute.noted(totals, self.reactor.now()),
        )
        return self._render(snapshot_of(seen))
