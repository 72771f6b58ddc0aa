"""Talks to the disk, in threads: figures of the last hour, a point every ten seconds, in a file
that outlives the gateway.

Each line of the file is one point, as JSON. When the file has twice `most` lines, it is rewritten
with the last `most`. A truncated line is skipped. A point has the figures that the dashboard page
draws. Means cover the time since the previous point. If a counter became smaller, its process was
restarted, and the point has no mean of that counter. A missing value is None.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

from typing_extensions import TypedDict

EVERY_S = 10.0
POINTS = 360
"""The number of points in an hour."""
QUIET_S = 2.4
"""How long a node may send no reading before it counts as silent. The figures of a silent node are
left out."""
RATES = {
    "generated": "generation_tokens_per_s",
    "prompts": "prompt_tokens_per_s",
    "running": "running",
    "waiting": "waiting",
    "kv": "kv_bytes",
}
"""The figures of a point, each with the field of a snapshot from which it comes."""


class NodePoint(TypedDict):
    """A node's CPU load (0 to 1) and its used memory in bytes; null if the node was silent."""

    cpu: float | None
    memory: int | None


class HistoryPoint(TypedDict):
    """The figures at `at_s` (wall time). `nodes` is keyed by node id."""

    at_s: float
    generated: float
    prompts: float
    running: int
    waiting: int
    kv: int
    ttft: float | None
    itl: float | None
    errors: int | None
    nodes: dict[str, NodePoint]


class HistoryFile:
    """The points on the disk. Only one task may write at a time; every method blocks."""

    def __init__(self, path: Path, most: int = POINTS) -> None:
        self._path, self._most = path, most
        self._lines: int | None = None

    def points(self) -> list[HistoryPoint]:
        """Return the last points, by time. Raises OSError."""
        try:
            text = self._path.read_text(errors="replace")
        except FileNotFoundError:
            return []
        points = [point for point in map(_point, text.splitlines()) if point is not None]
        # select by order in the file: a clock that was ahead for a while must hide no later points
        return sorted(points[-self._most :], key=lambda point: point["at_s"])

    def append(self, point: HistoryPoint) -> None:
        """Add a point. Raises OSError."""
        if self._lines is None or self._lines >= 2 * self._most:
            self._begin_anew()
        with self._path.open("a") as file:
            file.write(json.dumps(point, separators=(",", ":")) + "\n")
        self._lines = (self._lines or 0) + 1

    def _begin_anew(self) -> None:
        points = self.points()
        fresh = self._path.with_name(f".{self._path.name}.new")
        fresh.write_text(
            "".join(json.dumps(point, separators=(",", ":")) + "\n" for point in points)
        )
        fresh.replace(self._path)
        self._lines = len(points)


def _point(line: str) -> HistoryPoint | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    value = cast(dict[str, Any], value)
    return cast(HistoryPoint, value) if isinstance(value.get("at_s"), int | float) else None


class HistoryKeeper:
    """Adds points to the history, one at a time."""

    def __init__(self, file: HistoryFile, latest: Callable[[], Awaitable[bytes]]) -> None:
        self._file, self._latest = file, latest
        self._before: dict[str, Any] | None = None
        self._noting = False

    async def note(self) -> None:
        """Add a point made from the latest snapshot. If another call is adding one, do nothing.
        Raises OSError."""
        if self._noting:
            return
        self._noting = True
        try:
            snapshot: dict[str, Any] = json.loads(await self._latest())
            point = point_of(snapshot, self._before)
            self._before = snapshot
            await asyncio.to_thread(self._file.append, point)
        finally:
            self._noting = False


def point_of(snapshot: Mapping[str, Any], before: Mapping[str, Any] | None) -> HistoryPoint:
    """Return the point for a snapshot. `before` is the snapshot of the previous point."""
    now = snapshot["counters"]
    then = None if before is None else before["counters"]
    point: dict[str, Any] = {
        "at_s": round(snapshot["at_s"], 1),
        **{name: snapshot[field] for name, field in RATES.items()},
        "ttft": None if then is None else _mean(now["ttft_s"], then["ttft_s"]),
        "itl": None if then is None else _mean(now["itl_s"], then["itl_s"]),
        "errors": None if then is None else max(0, now["http_errors"] - then["http_errors"]),
        "nodes": {node["node"]: _node(node) for node in snapshot["nodes"]},
    }
    return cast(HistoryPoint, point)


def _mean(now: Mapping[str, Any], then: Mapping[str, Any]) -> float | None:
    count = sum(now["counts"]) - sum(then["counts"])
    return (now["sum"] - then["sum"]) / count if count > 0 else None


def _node(node: Mapping[str, Any]) -> NodePoint:
    total, available = node["memory_total_bytes"], node["memory_available_bytes"]
    is_silent = node["silent_s"] is None or node["silent_s"] >= QUIET_S
    if is_silent or total is None or available is None:
        return {"cpu": None, "memory": None}
    return {"cpu": node["cpu_ratio"], "memory": total - available}
