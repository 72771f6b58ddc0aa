"""Talks to this node's records, and to the gateways of other nodes: traces that are kept.

A trace is in the records of the node whose gateway had the request, which its id names; every
gateway asks that node. Those of a node any of its HTTP processes reads and removes.
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
    """Traces of all nodes, the latest first, each with its `node`, and the nodes whose are missing,
    with why."""

    traces: tuple[dict[str, Any], ...]
    missing: tuple[str, ...]


class TraceRecords:
    """The traces of all nodes, those of `node` being ours. What is of our own node raises
    RecordsUnavailable, what is of another RecordsElsewhere."""

    def __init__(self, records: NodeRecords, far: RecordLists, node: NodeId) -> None:
        self._records = records
        self._far = far
        self._node = node
        far.questions.answer(_FIND, self._find_here)
        far.questions.answer(_REMOVE, self._remove_here)
        far.questions.answer(_LATEST, self._latest_here)

    async def latest(self, limit: int, model: str | None) -> dict[str, Any]:
        """Return our node's last traces, the latest first, of a model or of all; and how many are
        kept, of how many bytes."""

        def ask(file: RecordsFile) -> dict[str, Any]:
            """Read them."""
            rows, [(kept, kept_bytes)] = file.read([traces.listed(limit, model), traces.KEPT])
            listed = [traces.shown(row) for row in rows]
            return {"kept": kept, "bytes": kept_bytes, "traces": listed}

        return await self._records.ask(ask)

    async def latest_of_all(self, limit: int, model: str | None) -> TracesListed:
        """Return the last traces of all nodes, by their wall clocks."""
        found = await self._far.ask(_LATEST, [limit, model])
        listed = [one for rows in found.answers for one in cast(list[dict[str, Any]], rows)]
        listed.sort(key=lambda one: one["ended_at_s"], reverse=True)
        return TracesListed(tuple(listed[:limit]), found.missing)

    async def stats(self, window_s: float, model: str | None) -> dict[str, Any]:
        """Return how long our node's traced requests took that ended in the last `window_s`, and
        their parts."""
        question = traces.summed(wall() - window_s, model)

        def ask(file: RecordsFile) -> dict[str, Any]:
            """Read them, and reckon."""
            [rows] = file.read([question])
            return traces.stats_told(rows)

        return await self._records.ask(ask)

    async def find(self, request: RequestId) -> bytes | None:
        """Return the trace of a request as JSON; None where none is kept."""
        found = await ask_home(self._far.questions, request, _FIND, [request])
        return cast(bytes | None, found)

    async def remove(self, request: RequestId) -> bool:
        """Remove the trace of a request; return False where none is kept."""
        return await ask_home(self._far.questions, request, _REMOVE, [request]) is True

    # --- of this node ----------------------------------------------------------------------------

    async def _find_here(self, arguments: Any) -> bytes | None:
        [request] = arguments

        def ask(file: RecordsFile) -> bytes | None:
            """Read it."""
            [rows] = file.read([traces.found(str(request))])
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
        found = await self.latest(int(limit), None if model is None else str(model))
        return [{"node": self._node, **trace} for trace in found["traces"]]
