"""Stored traces: one row for each traced request that has ended, and the SQL that writes, deletes
and queries these rows.

Pure: returns SQL with its values, and reads the resulting rows. A row has the trace as JSON,
without any text of a prompt or an answer. For statistics, it also has the seconds of each part of
the request, by name. The oldest rows are deleted first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.records.request_log import LogBounds, pruned_from
from gateway.records.statements import Statement

ROW_BYTES = 200
"""Estimated bytes of a row without its texts."""
MOST_SUMMED = 2000
"""Statistics use at most this many traces: the latest."""


class TraceRow(NamedTuple):
    """One trace: the columns that lists of traces show, then `sums` and `trace` as JSON.
    `began_at_s` and `ended_at_s` are wall-clock. `why`: requested by the client, or sampled."""

    request: str
    ended_at_s: float
    began_at_s: float
    seconds: float
    why: str
    spans: int
    sums: bytes
    trace: bytes
    model: str | None = None
    status: int = 200
    error: str | None = None


COLUMNS = TraceRow._fields
LISTED = tuple(name for name in COLUMNS if name not in ("sums", "trace"))
_INSERT = (
    f"INSERT INTO trace ({', '.join(COLUMNS)}, row_bytes) "
    f"VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"
)


def inserted(row: TraceRow) -> Statement:
    return Statement(_INSERT, (*row, ROW_BYTES + len(row.trace) + len(row.sums)))


def pruned(bounds: LogBounds, now_s: float) -> tuple[Statement, ...]:
    """Return the statements that delete the oldest traces if they exceed the limits. Each run
    deletes only some of them."""
    return pruned_from("trace", bounds, now_s)


def listed(limit: int, model: str | None) -> Statement:
    """Return the query for the last traces of a model or of all, latest first."""
    where, values = ("", ()) if model is None else ("WHERE model = ? ", (model,))
    return Statement(
        f"SELECT {', '.join(LISTED)} FROM trace {where}ORDER BY id DESC LIMIT ?", (*values, limit)
    )


def shown(values: Sequence[Any]) -> dict[str, Any]:
    """Return a row of the query `listed` as a dict by column names."""
    return dict(zip(LISTED, values, strict=True))


def find(request: str) -> Statement:
    """Return the query for the trace of a request."""
    return Statement(
        "SELECT trace FROM trace WHERE request = ? ORDER BY id DESC LIMIT 1", (request,)
    )


def removed(request: str) -> Statement:
    """Return the statement that deletes the trace of a request."""
    return Statement("DELETE FROM trace WHERE request = ?", (request,))


KEPT = Statement("SELECT rows, bytes FROM trace_tally")
"""The query for the number of traces and their bytes."""


def summed(since_s: float, model: str | None) -> Statement:
    """Return the query for the `sums` of the traces since `since_s`, at most the last
    `MOST_SUMMED`."""
    where, values = ("", ()) if model is None else ("AND model = ? ", (model,))
    return Statement(
        f"SELECT seconds, sums FROM trace WHERE ended_at_s >= ? {where}ORDER BY id DESC LIMIT ?",
        (since_s, *values, MOST_SUMMED),
    )


def stats_told(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return statistics of traced requests and their parts from the rows of `summed`: count,
    median, 95th percentile, and share of all seconds."""
    parts: dict[str, list[float]] = {}
    for _, sums in rows:
        of: Mapping[str, float] = json.loads(sums)
        for name, seconds in of.items():
            parts.setdefault(name, []).append(seconds)
    whole = [float(seconds) for seconds, _ in rows]
    total = sum(whole)
    return {
        "traces": len(rows),
        "seconds": _measured(whole, total),
        "parts": {name: _measured(values, total) for name, values in parts.items()},
    }


def _measured(values: Sequence[float], total: float) -> dict[str, Any] | None:
    if not values:
        return None
    ranked = sorted(values)
    return {
        "count": len(ranked),
        "p50": _percentile(ranked, 50),
        "p95": _percentile(ranked, 95),
        "share": round(sum(ranked) / total, 4) if total > 0 else None,
    }


def _percentile(ranked: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least `percent` percent of the values do not exceed."""
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]
