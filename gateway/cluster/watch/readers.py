"""Talks to the loop: those who read one stream of a process, so many at most, none for nothing.

A reader that takes nothing for a while is dropped, its connection with it; with no reader no timer
runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bus.links.reactor import Reactor, Timer


class FeedFull(Exception):
    """As many read as may."""


@dataclass(eq=False, slots=True)
class FeedReader:
    """One who reads: by which task, and since when it has not come for more (None: it waits)."""

    reactor: Reactor
    task: asyncio.Task[Any] | None
    away_since: float | None = None

    @contextmanager
    def away(self) -> Generator[None]:
        """Note that it was given something, until it comes for more."""
        self.away_since = self.reactor.now()
        try:
            yield
        finally:
            self.away_since = None


class Readers:
    """Those who read `path`: at most `most`; one that takes nothing for `slow_s` is dropped, which
    is looked at every `look_s`."""

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
        """Return how many read."""
        return len(self._readers)

    def check_room(self) -> None:
        """Raise FeedFull where no further reader may come."""
        if len(self._readers) >= self._most:
            raise FeedFull(f"{len(self._readers)} clients already read {self._path}, the limit")

    @contextmanager
    def reader(self) -> Generator[FeedReader]:
        """Yield this task as a reader."""
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
        """Look at none while none reads."""
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
