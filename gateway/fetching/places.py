"""Limits concurrent fetches, in total and for each client.

Pure. No fetch waits until another one has ended: beyond a limit it is refused, and the client is
asked to retry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from gateway.fetching.refusals import FetchRefused


class Places:
    """The fetches that one HTTP process may run concurrently. Each running fetch takes one
    place."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._taken: Counter[str] = Counter()

    @contextmanager
    def take(self, asker: str) -> Generator[None]:
        """Take a place for a client for the duration of the block. Raises FetchRefused if none is
        free."""
        if self._taken[asker] >= self._most_of_one or self._taken.total() >= self._most:
            raise FetchRefused("busy", "too many fetches are running; try again soon")
        self._taken[asker] += 1
        try:
            yield
        finally:
            self._taken[asker] -= 1
            if not self._taken[asker]:
                del self._taken[asker]


def shares(at_once: int, processes: int) -> tuple[int, int]:
    """Return two numbers: the places of one HTTP process, and how many of them one client may
    take."""
    most = max(1, at_once // processes)
    return most, max(1, most // 2)
