"""Talks to the event loop and to readers (clients): the events of the cluster's log, as a list and
as a stream.

A reader moves through the ring of events at its own pace, so a slow reader takes no memory. If it
missed events, it receives a gap in their place. A reader that takes nothing for `slow_s` is
dropped.
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
from gateway.view.counters import Counters
from gateway.view.watch.event_ring import Entry, EventRing, LogPlace
from gateway.view.watch.load_timeline import LoadTimeline, LoadTimes
from gateway.view.watch.readers import Readers

COUNTS_LOADS = "gateway:0"
"""The HTTP process that counts the loads of its node. The node's other HTTP processes do not count
them."""
BATCH = 64
"""Maximum number of events that are sent to a reader at a time."""


@dataclass(frozen=True, slots=True)
class EventBounds:
    """Limits of the stream of events.

    `quiet_s`: after this time without an event, a reader receives a message that shows that the
    stream is open. `slow_s`: a reader that takes nothing for this long is dropped. `readers`: the
    maximum number of readers. `behind_s`: how long a reader waits for a process that has not yet
    applied the newest events.
    """

    quiet_s: float = 5.0
    slow_s: float = 10.0
    readers: int = 64
    behind_s: float = 2.0


class EventFeed:
    """Delivers the events of a ring to the readers of one process."""

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
        """Return the number of readers."""
        return len(self._readers)

    @property
    def last(self) -> LogPlace | None:
        """Return the log position of the last event that this process has applied; None before the
        first event."""
        return self._ring.last

    def check_room(self) -> None:
        """Raise FeedFull if the feed has as many readers as it may have."""
        self._readers.check_room()

    def moved(self, moves: Iterable[Move], now_s: float) -> None:
        """Add the latest changes of the mirrored state and wake the readers. `now_s` is wall
        time."""
        self._ring.moved(moves, now_s)
        self._wake()

    async def listed(self, after: LogPlace | None, limit: int) -> list[Entry]:
        """Return the entries after a log position, or the last entries if `after` is None. May wait
        until this process has applied the log up to that position."""
        if after is None:
            return self._ring.latest(limit)
        await self._caught_up(after)
        return self._ring.after(after, limit)

    async def read(
        self, after: LogPlace | None, limit: int, gone: asyncio.Future[Any]
    ) -> AsyncGenerator[Sequence[Entry]]:
        """Yield the entries after a log position, then new entries as they come. If `after` is
        None, begin with the last `limit` entries. After `quiet_s` without an event, yields an empty
        batch. Ends when the client disconnects or after `close`."""
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
        """End the streams of all readers."""
        self._is_closed = True
        self._wake()

    async def _changes(self) -> bool:
        """Wait for a change, at most `quiet_s`; return whether one came."""
        changed = self._changed
        try:
            async with asyncio.timeout(self._bounds.quiet_s):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    async def _caught_up(self, place: LogPlace) -> None:
        """Wait until this process has applied the log up to a position that a client got from
        another process. Gives up after `behind_s`."""
        try:
            async with asyncio.timeout(self._bounds.behind_s):
                while not self._is_closed and (
                    self._ring.last is None or self._ring.last.index < place.index
                ):
                    await self._changed.wait()
        except TimeoutError:
            return

    def _wake(self, _gone: object = None) -> None:
        """Wake all readers that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()


def follow_log(
    bus: BusClient, reactor: Reactor, speaker: Speaker, counters: Counters
) -> tuple[LoadTimeline, EventFeed]:
    """Return the timeline of loads and the feed of events. From now on both follow the state of the
    cluster that the bus mirrors. Only the first HTTP process of a node counts the node's loads, so
    that each load is counted once."""
    timeline, feed, moves = LoadTimeline(), EventFeed(reactor), list[Move]()
    times = LoadTimes(speaker.node)
    bus.mirror.moves = moves

    def moved(_state: ClusterState) -> None:
        """Pass on the new changes of the mirrored state, then drop them."""
        new = timeline.moved(moves, wall())
        if speaker.process == COUNTS_LOADS:
            for model, seconds in times.record(new):
                counters.loaded(model, seconds)
        feed.moved(moves, wall())
        moves.clear()

    bus.on_state.append(moved)
    return timeline, feed
