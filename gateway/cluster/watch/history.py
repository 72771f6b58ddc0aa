"""Talks to the disk, in threads: what was measured in the last hour, a point each ten seconds, in a
file that outlives the gateway.

A line is a point, as JSON. When the file has twice as many as are told it is written anew, so that
it stays small; a line that was cut is passed over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from gateway.cluster.watch.history_points import point_of

EVERY_S = 10.0
POINTS = 360
"""An hour's."""


class HistoryFile:
    """The points on the disk. It has one writer at a time; every method blocks."""

    def __init__(self, path: Path, most: int = POINTS) -> None:
        self._path, self._most = path, most
        self._lines: int | None = None

    def points(self) -> list[dict[str, Any]]:
        """Return the last points, in the order of their times. Raises OSError."""
        try:
            text = self._path.read_text(errors="replace")
        except FileNotFoundError:
            return []
        found = [point for point in map(_point, text.splitlines()) if point is not None]
        return sorted(found, key=lambda point: point["at_s"])[-self._most :]

    def append(self, point: dict[str, Any]) -> None:
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


def _point(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    point = cast(dict[str, Any], found)
    return point if isinstance(point.get("at_s"), int | float) else None


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
