"""Talks to the event loop: counts, limits and drops the readers of one stream of a process.

A reader that takes nothing for a while is dropped, and its connection is closed. While there is no
reader, no timer runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bus.links.reactor import Reactor, Timer


class FeedFull(Exception):
    """The stream has as many readers as it may have."""


@dataclass(eq=False, slots=True)
class FeedReader:
    """A reader and its task. `away_since` is when the reader received its last item. It is None
    while the reader waits for the next item."""

    reactor: Reactor
    task: asyncio.Task[Any] | None
    away_since: float | None = None

    @contextmanager
    def away(self) -> Generator[None]:
        """Mark the reader as away while the block sends an item to it."""
        self.away_since = self.reactor.now()
        try:
            yield
        finally:
            self.away_since = None


class Readers:
    """The readers of `path`, at most `most`. A check every `look_s` drops readers that took nothing
    for `slow_s`."""

    def __init__(
        self, reactor: Reactor, path: str, *, most: int, slow_s: float, look_s: float
    ) -> None:
        self._reactor = reactor
        self._path = path
        self._most = most
        self._slow_s = slow_s
        self._look_s = look_s
        self._readers: set[FeedReader] = set()
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._readers)

    def check_room(self) -> None:
        """Raise FeedFull if the stream has as many readers as it may have."""
        if len(self._readers) >= self._most:
            raise FeedFull(f"{len(self._readers)} clients already read {self._path}, the limit")

    @contextmanager
    def reader(self) -> Generator[FeedReader]:
        """Register the current task as a reader."""
        reader = FeedReader(self._reactor, asyncio.current_task())
        self._readers.add(reader)
        if self._timer is None:
            self._timer = self._reactor.every(self._look_s, self._drop_slow)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            self._rest()

    def _rest(self) -> None:
        """Stop the timer if there are no more readers."""
        if not self._readers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop_slow(self) -> None:
        now = self._reactor.now()
        for reader in list(self._readers):
            since = reader.away_since
            if since is not None and now - since >= self._slow_s and reader.task is not None:
                self._readers.discard(reader)
                reader.task.cancel()
