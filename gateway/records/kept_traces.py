"""Talks to this node's records and to the gateways of other nodes: lists, finds and deletes stored
traces.

A trace is stored on the node whose gateway received the request. The request's id names that node,
so any gateway can ask that node for it. All HTTP processes of a node share one file, so each of
them can read and delete the node's traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from bus.calls import NodeCalls, table
from bus.process.clock import wall
from bus.wire.calls.answers import Done
from bus.wire.calls.traces import FindTrace, ListTraces, RemoveTrace, TraceFound, TracesFound
from bus.wire.ids import NodeId, RequestId
from gateway.dialects.encode import json_bytes
from gateway.records import traces
from gateway.records.file import RecordsFile
from gateway.records.node_records import NodeRecords


@dataclass(frozen=True, slots=True)
class TracesListed:
    """Traces of all nodes, latest first, each with its `node`. `missing` has the nodes whose traces
    are missing, each with a reason."""

    traces: tuple[dict[str, Any], ...]
    missing: tuple[str, ...]


class TraceRecords:
    """Finds the traces of all nodes; `node` is this node. Methods raise RecordsUnavailable if this
    node's records cannot be read, and CallFailed if those of another node cannot."""

    def __init__(self, records: NodeRecords, calls: NodeCalls, node: NodeId) -> None:
        self._records = records
        self._calls = calls
        self._node = node
        calls.answer(table.FIND_TRACE, self._find)
        calls.answer(table.REMOVE_TRACE, self._remove)
        calls.answer(table.LIST_TRACES, self._list)

    async def latest(self, limit: int, model: str | None) -> dict[str, Any]:
        """Return this node's last traces, latest first, of one model or of all models. Also return
        the number and the bytes of all traces of this node."""

        def ask(file: RecordsFile) -> dict[str, Any]:
            rows, [(count, total_bytes)] = file.read([traces.listed(limit, model), traces.KEPT])
            listed = [traces.shown(row) for row in rows]
            return {"kept": count, "bytes": total_bytes, "traces": listed}

        return await self._records.ask(ask)

    async def latest_of_all(self, limit: int, model: str | None, key: str) -> TracesListed:
        """Return the last traces of all nodes, ordered by the wall clock of each node. `key` is the
        API key of the client (`NodeCalls.ask`)."""
        question = ListTraces(limit=limit, model=model)
        gathered = await self._calls.ask_each(table.LIST_TRACES, question, key=key)
        listed: list[dict[str, Any]] = []
        for reply in gathered.replies.values():
            listed += orjson.loads(reply.traces)
        listed.sort(key=lambda trace: trace["ended_at_s"], reverse=True)
        return TracesListed(tuple(listed[:limit]), gathered.missing)

    async def stats(self, window_s: float, model: str | None) -> dict[str, Any]:
        """Return statistics of this node's traced requests that ended in the last `window_s`
        seconds, and of the parts of these requests."""
        question = traces.summed(wall() - window_s, model)

        def ask(file: RecordsFile) -> dict[str, Any]:
            [rows] = file.read([question])
            return traces.stats_told(rows)

        return await self._records.ask(ask)

    async def find(self, request: RequestId, key: str) -> bytes | None:
        """Return the stored trace of a request as JSON; None if the request has no stored trace."""
        find = FindTrace(request=request)
        reply = await self._calls.ask_owner(request, table.FIND_TRACE, find, key=key)
        return None if reply is None else reply.trace

    async def remove(self, request: RequestId, key: str) -> bool:
        """Delete the trace of a request. Return False if the request has no stored trace."""
        remove = RemoveTrace(request=request)
        return await self._calls.have_done(request, table.REMOVE_TRACE, remove, key=key)

    # --- for the gateways of other nodes ---------------------------------------------------------

    async def _find(self, call: FindTrace) -> TraceFound:
        query = traces.find(call.request)
        [rows] = await self._records.ask(lambda file: file.read([query]))
        return TraceFound(trace=rows[0][0] if rows else None)

    async def _remove(self, call: RemoveTrace) -> Done:
        changed = await self._records.write([traces.removed(call.request)])
        return Done(done=changed[0] > 0)

    async def _list(self, call: ListTraces) -> TracesFound:
        latest = await self.latest(call.limit, call.model)
        rows = [{"node": self._node, **trace} for trace in latest["traces"]]
        return TracesFound(traces=json_bytes(rows))
