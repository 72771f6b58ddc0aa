"""Talks to the disk, in threads: what was measured in the last hour, a point each ten seconds, in a
file that outlives the gateway.

A line is a point, as JSON. When the file has twice as many as are told it is written anew, so that
it stays small; a line that was cut is passed over. A point has the figures that the page draws:
means are of what was counted since the point before; counts that went back began anew, and say
nothing of that time. What is not known is None.
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
"""An hour's."""
QUIET_S = 2.4
"""A node that was not heard of for so long is silent: what it told last is not what it does."""
RATES = {
    "generated": "generation_tokens_per_s",
    "prompts": "prompt_tokens_per_s",
    "running": "running",
    "waiting": "waiting",
    "kv": "kv_bytes",
}
"""A point's figures, and which of a snapshot's each is."""


class NodePoint(TypedDict):
    """How busy a node was, and its memory in use in bytes; null where it was silent."""

    cpu: float | None
    memory: int | None


class HistoryPoint(TypedDict):
    """A point; `nodes` by their ids."""

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
    """The points on the disk. It has one writer at a time; every method blocks."""

    def __init__(self, path: Path, most: int = POINTS) -> None:
        self._path, self._most = path, most
        self._lines: int | None = None

    def points(self) -> list[HistoryPoint]:
        """Return the last points, in the order of their times. Raises OSError."""
        try:
            text = self._path.read_text(errors="replace")
        except FileNotFoundError:
            return []
        found = [point for point in map(_point, text.splitlines()) if point is not None]
        # the last that were written: a clock that was ahead for a while keeps out none behind it
        return sorted(found[-self._most :], key=lambda point: point["at_s"])

    def append(self, point: HistoryPoint) -> None:
        """Add a point. Raises OSError."""
        if self._lines is None or self._lines >= 2 * self._most:
            self._begin_anew()
        with self._path.open("a") as file:
            file.write(json.dumps(point, separators=(",", ":")) + "\n")
        self._lines = (self._lines or 0) + 1

    def _begin_anew(self) -> None:
        kept = self.points()
        fresh = self._path.with_name(f".{self._path.name}.new")
        fresh.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in kept))
        fresh.replace(self._path)
        self._lines = len(kept)


def _point(line: str) -> HistoryPoint | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    point = cast(dict[str, Any], found)
    return cast(HistoryPoint, point) if isinstance(point.get("at_s"), int | float) else None


class HistoryKeeper:
    """Adds a point to the history each time that it is asked to, one after the other."""

    def __init__(self, file: HistoryFile, latest: Callable[[], Awaitable[bytes]]) -> None:
        self._file, self._latest = file, latest
        self._before: dict[str, Any] | None = None
        self._noting = False

    async def note(self) -> None:
        """Add what the cluster does now; nothing while that is done already. Raises OSError."""
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
    """Return the point of a snapshot, where `before` is the snapshot of the point before it."""
    now = snapshot["counters"]
    then = None if before is None else before["counters"]
    point: dict[str, Any] = {
        "at_s": round(snapshot["at_s"], 1),
        **{name: snapshot[told] for name, told in RATES.items()},
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
