"""Whether a thread of a runner has owed its next result for too long.

Pure: time arrives as `now`, and time without a core does not count (`bus.patience`). The thread
writes since when it owes something and goes on meanwhile, so what is read here may be out of date
when the next line runs. Each field is therefore read once into a local name, and a deadline counts
as passed only if the thread still owes the same result after the limit is known.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.patience import OwedTime


class Watchdog:
    """Watches one thread from the main thread. `owes_since` reads the instant since which that
    thread has owed a result; None while it owes none. `waited_s` returns for how long in all it,
    and those that work for it, were ready without a core. To be asked several times a second."""

    def __init__(
        self, owes_since: Callable[[], float | None], waited_s: Callable[[], float]
    ) -> None:
        self._owes_since = owes_since
        self._owed = OwedTime(waited_s)

    def passed(self, now: float, limit_s: Callable[[], float]) -> float | None:
        """Return the limit in seconds if the thread has passed it, else None. `limit_s` is called
        only while a result is owed."""
        since = self._owes_since()
        spent_s = self._owed.spent_s(now, since)
        if since is None:
            return None
        limit = limit_s()
        return limit if spent_s > limit and self._owes_since() == since else None
