"""The kept traces: a row for each traced request that has ended, and what may be asked of them.

Pure: SQL and its values in, rows out. A row has the trace as JSON, which has no word of a prompt or
an answer, and the seconds of its parts by name, for statistics. The oldest go first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.records.request_log import LogBounds, pruned_from
from gateway.records.statements import Statement

ROW_BYTES = 200
"""What a row takes beside its texts."""
MOST_TOLD = 2000
"""The traces that statistics are of, at most: the latest."""


class TraceRow(NamedTuple):
    """One trace: what a list tells of it, then `sums` and `trace` as JSON. `began_at_s` and
    `ended_at_s` are wall-clock; `why`: it was asked for, or sampled."""

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
    """Return what writes a row."""
    return Statement(_INSERT, (*row, ROW_BYTES + len(row.trace) + len(row.sums)))


def pruned(bounds: LogBounds, now_s: float) -> tuple[Statement, ...]:
    """Return what removes the traces beyond the bounds, some at a time; the oldest go first."""
    return pruned_from("trace", bounds, now_s)


def listed(limit: int, model: str | None) -> Statement:
    """Return the question for the last traces, the latest first, of a model or of all."""
    where, values = ("", ()) if model is None else ("WHERE model = ? ", (model,))
    return Statement(
        f"SELECT {', '.join(LISTED)} FROM trace {where}ORDER BY id DESC LIMIT ?", (*values, limit)
    )


def shown(values: Sequence[Any]) -> dict[str, Any]:
    """Return a row of `listed` by the names of its columns."""
    return dict(zip(LISTED, values, strict=True))


def found(request: str) -> Statement:
    """Return the question for the trace of a request."""
    return Statement(
        "SELECT trace FROM trace WHERE request = ? ORDER BY id DESC LIMIT 1", (request,)
    )


def removed(request: str) -> Statement:
    """Return what removes the trace of a request."""
    return Statement("DELETE FROM trace WHERE request = ?", (request,))


KEPT = Statement("SELECT rows, bytes FROM trace_tally")
"""The question how many traces there are, of how many bytes."""


def summed(since_s: float, model: str | None) -> Statement:
    """Return the question for the sums of the last traces since then, `MOST_TOLD` at most."""
    where, values = ("", ()) if model is None else ("AND model = ? ", (model,))
    return Statement(
        f"SELECT seconds, sums FROM trace WHERE ended_at_s >= ? {where}ORDER BY id DESC LIMIT ?",
        (since_s, *values, MOST_TOLD),
    )


def stats_told(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return, from the rows of `summed`, how long traced requests and their parts took: how many
    have a part, its median, its 95th percentile, and its share of all seconds."""
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
    """Return the smallest value that at least so many of a hundred do not exceed."""
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]
