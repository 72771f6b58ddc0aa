"""Talks to the loop and to readers: the log's events, as a list and as they happen.

A reader goes through the ring at its own pace, so that a slow one takes no memory: what it missed
meanwhile is told as a gap, and one that takes nothing for `slow_s` is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bus.client import BusClient, Speaker
from bus.links.reactor import Reactor
from bus.process.clock import wall
from bus.replica.mirror import Move
from bus.replica.state import ClusterState
from gateway.cluster.counters import Counters
from gateway.cluster.watch.event_ring import Entry, EventRing, LogPlace
from gateway.cluster.watch.load_timeline import LoadTimeline, LoadTimes
from gateway.cluster.watch.readers import Readers

COUNTS_LOADS = "gateway:0"
"""The HTTP process that counts loads for all of its node."""
BATCH = 64
"""Events that are given at a time."""


@dataclass(frozen=True, slots=True)
class EventBounds:
    """After how long without an event a reader is told that the stream is open, how long one may
    take nothing, and how many may read; how long a process that is behind is waited for."""

    quiet_s: float = 5.0
    slow_s: float = 10.0
    readers: int = 64
    behind_s: float = 2.0


class EventFeed:
    """The events of a ring, for the readers of one process."""

    def __init__(
        self,
        reactor: Reactor,
        ring: EventRing | None = None,
        bounds: EventBounds | None = None,
    ) -> None:
        self._ring = EventRing() if ring is None else ring
        self._bounds = bounds or EventBounds()
        self._readers = Readers(
            reactor,
            "/events",
            most=self._bounds.readers,
            slow_s=self._bounds.slow_s,
            look_s=1.0,
        )
        self._changed = asyncio.Event()
        self._is_closed = False

    @property
    def readers(self) -> int:
        """Return how many read."""
        return len(self._readers)

    @property
    def last(self) -> LogPlace | None:
        """Return the place up to which the log is known here; None: nothing is."""
        return self._ring.last

    def check_room(self) -> None:
        """Raise FeedFull where no further reader may come."""
        self._readers.check_room()

    def moved(self, moves: Iterable[Move], now_s: float) -> None:
        """Take how the state has moved, by the wall's `now_s`."""
        self._ring.moved(moves, now_s)
        self._wake()

    async def listed(self, after: LogPlace | None, limit: int) -> list[Entry]:
        """Return the events behind a place; without one, the last."""
        if after is None:
            return self._ring.latest(limit)
        await self._caught_up(after)
        return self._ring.after(after, limit)

    async def read(
        self, after: LogPlace | None, limit: int, gone: asyncio.Future[Any]
    ) -> AsyncGenerator[Sequence[Entry]]:
        """Yield the events behind a place (without one, the last `limit`) and those that follow,
        until the client is gone or `close`; none in a turn in which nothing happened."""
        with self._readers.reader() as reader:
            gone.add_done_callback(self._wake)
            try:
                entries = await self.listed(after, BATCH if after else limit)
                place = after or self._ring.last
                while not (self._is_closed or gone.done()):
                    if entries:
                        with reader.away():
                            yield entries
                        place = entries[-1].place
                    elif not await self._changes():
                        with reader.away():
                            yield ()
                    entries = self._ring.after(place, BATCH)
            finally:
                gone.remove_done_callback(self._wake)

    def close(self) -> None:
        """Have all readers' streams end."""
        self._is_closed = True
        self._wake()

    async def _changes(self) -> bool:
        """Wait until there may be more; return whether that came in time."""
        changed = self._changed
        try:
            async with asyncio.timeout(self._bounds.quiet_s):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    async def _caught_up(self, place: LogPlace) -> None:
        """Wait until this process knows the log up to a place that another one told, or gives
        up."""
        try:
            async with asyncio.timeout(self._bounds.behind_s):
                while not self._is_closed and (
                    self._ring.last is None or self._ring.last.index < place.index
                ):
                    await self._changed.wait()
        except TimeoutError:
            return

    def _wake(self, _gone: object = None) -> None:
        """Have all who wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()


def follow_log(
    bus: BusClient, reactor: Reactor, speaker: Speaker, counters: Counters
) -> tuple[LoadTimeline, EventFeed]:
    """Return a record of loads and a feed of events, which take how the bus's replica moves, from
    now on. Of the HTTP processes of a node the first counts its loads, so that each counts once."""
    timeline, feed, moves = LoadTimeline(), EventFeed(reactor), list[Move]()
    times = LoadTimes(speaker.node)
    bus.mirror.moves = moves

    def moved(_state: ClusterState) -> None:
        """Take the moves, and hold them no longer."""
        new = timeline.moved(moves, wall())
        if speaker.process == COUNTS_LOADS:
            for model, seconds in times.taken(new):
                counters.loaded(model, seconds)
        feed.moved(moves, wall())
        moves.clear()

    bus.on_state.append(moved)
    return timeline, feed
