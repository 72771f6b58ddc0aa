"""Talks to this node's records: the traces of requests that are kept.

Any HTTP process reads and removes those of all of its node.
"""

from __future__ import annotations

from typing import Any

from bus.process.clock import wall
from bus.wire.ids import RequestId
from gateway.records import traces
from gateway.records.file import RecordsFile
from gateway.records.node_records import NodeRecords


class TraceRecords:
    """The traces of a node, as one HTTP process has them. Every call raises RecordsUnavailable."""

    def __init__(self, records: NodeRecords) -> None:
        self._records = records

    async def latest(self, limit: int, model: str | None) -> dict[str, Any]:
        """Return the last traces, the latest first, of a model or of all; and how many are kept, of
        how many bytes."""

        def ask(file: RecordsFile) -> dict[str, Any]:
            """Read them."""
            rows, [(kept, kept_bytes)] = file.read([traces.listed(limit, model), traces.KEPT])
            listed = [traces.shown(row) for row in rows]
            return {"kept": kept, "bytes": kept_bytes, "traces": listed}

        return await self._records.ask(ask)

    async def stats(self, window_s: float, model: str | None) -> dict[str, Any]:
        """Return how long traced requests took that ended in the last `window_s`, and their
        parts."""
        question = traces.summed(wall() - window_s, model)

        def ask(file: RecordsFile) -> dict[str, Any]:
            """Read them, and reckon."""
            [rows] = file.read([question])
            return traces.stats_told(rows)

        return await self._records.ask(ask)

    async def find(self, request: RequestId) -> bytes | None:
        """Return the trace of a request as JSON; None where none is kept."""

        def ask(file: RecordsFile) -> bytes | None:
            """Read it."""
            [rows] = file.read([traces.found(request)])
            return bytes(rows[0][0]) if rows else None

        return await self._records.ask(ask)

    async def remove(self, request: RequestId) -> bool:
        """Remove the trace of a request; return False where none is kept."""
        if await self.find(request) is None:
            return False
        await self._records.write([traces.removed(request)])
        return True
