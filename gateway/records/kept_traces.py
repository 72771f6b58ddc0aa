"""Talks to this node's records and to the gateways of other nodes: lists, finds and deletes stored
traces.

A trace is stored on the node whose gateway received the request. The request's id names that node,
so any gateway can ask that node for it. All HTTP processes of a node share one file, so each of
them can read and delete the node's traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from bus.process.clock import wall
from bus.wire.ids import NodeId, RequestId
from gateway.cluster.record_lists import RecordLists
from gateway.cluster.record_questions import ask_home
from gateway.records import traces
from gateway.records.file import RecordsFile
from gateway.records.node_records import NodeRecords

_FIND, _REMOVE, _LATEST = "trace.find", "trace.remove", "trace.latest"


@dataclass(frozen=True, slots=True)
class TracesListed:
    """Traces of all nodes, latest first, each with its `node`. `missing` has the nodes whose traces
    are missing, each with a reason."""

    traces: tuple[dict[str, Any], ...]
    missing: tuple[str, ...]


class TraceRecords:
    """Finds the traces of all nodes; `node` is this node. Methods raise RecordsUnavailable if this
    node's records cannot be read, and RecordsElsewhere if another node's cannot."""

    def __init__(self, records: NodeRecords, far: RecordLists, node: NodeId) -> None:
        self._records = records
        self._far = far
        self._node = node
        far.questions.answer(_FIND, self._find_here)
        far.questions.answer(_REMOVE, self._remove_here)
        far.questions.answer(_LATEST, self._latest_here)

    async def latest(self, limit: int, model: str | None) -> dict[str, Any]:
        """Return this node's last traces, latest first, of one model or of all models. Also return
        the number and the bytes of all traces of this node."""

        def ask(file: RecordsFile) -> dict[str, Any]:
            rows, [(count, total_bytes)] = file.read([traces.listed(limit, model), traces.KEPT])
            listed = [traces.shown(row) for row in rows]
            return {"kept": count, "bytes": total_bytes, "traces": listed}

        return await self._records.ask(ask)

    async def latest_of_all(self, limit: int, model: str | None) -> TracesListed:
        """Return the last traces of all nodes, ordered by the wall clock of each node."""
        replies = await self._far.ask(_LATEST, [limit, model])
        listed = [trace for rows in replies.answers for trace in cast(list[dict[str, Any]], rows)]
        listed.sort(key=lambda trace: trace["ended_at_s"], reverse=True)
        return TracesListed(tuple(listed[:limit]), replies.missing)

    async def stats(self, window_s: float, model: str | None) -> dict[str, Any]:
        """Return statistics of this node's traced requests that ended in the last `window_s`
        seconds, and of the parts of these requests."""
        question = traces.summed(wall() - window_s, model)

        def ask(file: RecordsFile) -> dict[str, Any]:
            [rows] = file.read([question])
            return traces.stats_told(rows)

        return await self._records.ask(ask)

    async def find(self, request: RequestId) -> bytes | None:
        """Return the stored trace of a request as JSON; None if the request has no stored trace."""
        trace = await ask_home(self._far.questions, request, _FIND, [request])
        return cast(bytes | None, trace)

    async def remove(self, request: RequestId) -> bool:
        """Delete the trace of a request. Return False if the request has no stored trace."""
        return await ask_home(self._far.questions, request, _REMOVE, [request]) is True

    # --- for the gateways of other nodes ---------------------------------------------------------

    async def _find_here(self, arguments: Any) -> bytes | None:
        [request] = arguments

        def ask(file: RecordsFile) -> bytes | None:
            [rows] = file.read([traces.find(str(request))])
            return bytes(rows[0][0]) if rows else None

        return await self._records.ask(ask)

    async def _remove_here(self, arguments: Any) -> bool:
        [request] = arguments
        if await self._find_here([request]) is None:
            return False
        await self._records.write([traces.removed(str(request))])
        return True

    async def _latest_here(self, arguments: Any) -> list[dict[str, Any]]:
        limit, model = arguments
        latest = await self.latest(int(limit), None if model is None else str(model))
        return [{"node": self._node, **trace} for trace in latest["traces"]]
