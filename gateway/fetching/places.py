"""How much is fetched and read at once: so many, and so many for one who asks.

Pure. Nothing waits: beyond the bounds one is told to come again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from gateway.fetching.refusals import FetchRefused


class Places:
    """The places of one HTTP process."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, asker: str) -> Generator[None]:
        """Hold a place for one who asks. Raises FetchRefused where there is none."""
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
    """Return the places of one of so many HTTP processes, and those of one asker there."""
    most = max(1, at_once // processes)
    return most, max(1, most // 2)
