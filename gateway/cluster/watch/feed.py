"""Talks to the loop and to readers: one snapshot a second for all of a process, while any watch.

A snapshot is made for the first who asks and is the same for all for a second; with no reader
nothing is made. A reader is given the latest there is, so that a slow one misses some; one that
takes none for `slow_s` is dropped, its connection with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bus.links.reactor import Reactor, Timer

FRESH_RATIO = 0.95
"""A loop may wake a little early: what is nearly due is due."""


@dataclass(frozen=True, slots=True)
class FeedBounds:
    """How often a snapshot is made, how long a reader may take none, and how many may read."""

    every_s: float = 1.0
    slow_s: float = 10.0
    readers: int = 64


class FeedFull(Exception):
    """As many read as may."""


@dataclass(eq=False, slots=True)
class _Reader:
    """One who watches: by which task, and since when it has not come for the next snapshot (None:
    it waits for one)."""

    task: asyncio.Task[Any] | None
    away_since: float | None


class SnapshotFeed:
    """Snapshots that `build` makes as bytes, for the readers of one process."""

    def __init__(
        self,
        build: Callable[[], Awaitable[bytes]],
        reactor: Reactor,
        bounds: FeedBounds | None = None,
    ) -> None:
        self._build = build
        self._bounds = bounds or FeedBounds()
        self._reactor = reactor
        self._made: bytes = b""
        self._made_at: float | None = None
        self._making: asyncio.Future[bytes] | None = None
        self._readers: set[_Reader] = set()
        self._closed = asyncio.Event()
        self._timer: Timer | None = None

    @property
    def readers(self) -> int:
        """Return how many watch."""
        return len(self._readers)

    def check_room(self) -> None:
        """Raise FeedFull where no further reader may come."""
        if len(self._readers) >= self._bounds.readers:
            raise FeedFull(f"{len(self._readers)} clients read /metrics/stream here")

    async def latest(self) -> bytes:
        """Return a snapshot that is at most `every_s` old; those who ask meanwhile share it."""
        if self._made_at is not None:
            age_s = self._reactor.now() - self._made_at
            if age_s < FRESH_RATIO * self._bounds.every_s:
                return self._made
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
        # who goes away meanwhile does not take it from the others
        return await asyncio.shield(self._making)

    async def read(self) -> AsyncGenerator[bytes]:
        """Yield a snapshot each `every_s`, until `close`."""
        reader = _Reader(asyncio.current_task(), None)
        self._readers.add(reader)
        if self._timer is None:
            self._timer = self._reactor.every(self._bounds.every_s, self._drop_slow)
        try:
            while not self._closed.is_set():
                reader.away_since = None
                made = await self.latest()
                reader.away_since = self._reactor.now()
                yield made
                reader.away_since = None
                await self._pause()
        finally:
            self._readers.discard(reader)
            self._rest()

    def close(self) -> None:
        """Have all readers' streams end."""
        self._closed.set()

    def _rest(self) -> None:
        """Do nothing more while no reader is left."""
        if not self._readers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _make(self) -> bytes:
        try:
            self._made = await self._build()
            self._made_at = self._reactor.now()
            return self._made
        finally:
            self._making = None

    async def _pause(self) -> None:
        """Wait until the next snapshot is due, or the end."""
        assert self._made_at is not None
        left_s = self._made_at + self._bounds.every_s - self._reactor.now()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                await self._closed.wait()
        except TimeoutError:
            return

    def _drop_slow(self) -> None:
        now = self._reactor.now()
        for reader in list(self._readers):
            since = reader.away_since
            if since is not None and now - since >= self._bounds.slow_s and reader.task is not None:
                self._readers.discard(reader)
                reader.task.cancel()
