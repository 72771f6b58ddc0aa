"""Talks to the event loop and to readers (clients): one snapshot per second for all readers of a
process.

The first reader has a snapshot built, and all readers share it for a second. Without readers, no
snapshot is built. A reader always receives the latest snapshot, so a slow reader misses some. A
reader that takes no snapshot for `slow_s` is dropped, and its connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from bus.links.reactor import Reactor
from gateway.view.watch.readers import Readers

FRESH_RATIO = 0.95
"""The share of the snapshots' period after which a new snapshot is due. It is below 1, because a
loop may wake slightly early."""


@dataclass(frozen=True, slots=True)
class FeedBounds:
    """Limits of the stream of snapshots. `every_s`: the period of snapshots. `slow_s`: a reader
    that takes none for this long is dropped. `readers`: the maximum number of readers."""

    every_s: float = 1.0
    slow_s: float = 10.0
    readers: int = 64


class SnapshotFeed:
    """Delivers snapshots to the readers of one process. `build` makes a snapshot, as bytes."""

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
        self._readers = Readers(
            reactor,
            "/metrics/stream",
            most=self._bounds.readers,
            slow_s=self._bounds.slow_s,
            look_s=self._bounds.every_s,
        )
        self._closed = asyncio.Event()

    @property
    def readers(self) -> int:
        """Return the number of readers."""
        return len(self._readers)

    def check_room(self) -> None:
        """Raise FeedFull if the feed has as many readers as it may have."""
        self._readers.check_room()

    async def latest(self) -> bytes:
        """Return a snapshot that is at most `every_s` old. Concurrent callers share one build."""
        if self._made_at is not None:
            age_s = self._reactor.now() - self._made_at
            if age_s < FRESH_RATIO * self._bounds.every_s:
                return self._made
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
        # a reader that disconnects meanwhile must not cancel the build for the others
        return await asyncio.shield(self._making)

    async def read(self) -> AsyncGenerator[bytes]:
        """Yield a snapshot each `every_s`, until `close`."""
        with self._readers.reader() as reader:
            while not self._closed.is_set():
                made = await self.latest()
                with reader.away():
                    yield made
                await self._pause()

    def close(self) -> None:
        """End the streams of all readers."""
        self._closed.set()

    async def _make(self) -> bytes:
        try:
            self._made = await self._build()
            self._made_at = self._reactor.now()
            return self._made
        finally:
            self._making = None

    async def _pause(self) -> None:
        """Wait until the next snapshot is due or the feed is closed."""
        assert self._made_at is not None
        left_s = self._made_at + self._bounds.every_s - self._reactor.now()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                await self._closed.wait()
        except TimeoutError:
            return
