"""Detect that a thread of a runner has owed its next result for too long.

Pure: time arrives as `now`, and time without a CPU core does not count (`bus.patience`). The
watched thread writes the time since which it has owed a result, and continues to run. So a value
that the watchdog reads may be outdated on the next line. Each field is therefore read once into a
local name. A deadline counts as passed only if the thread still owes the same result after the
limit is computed.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.patience import OwedTime


class Watchdog:
    """Watches one thread from the main thread. `owes_since` returns the instant since which the
    thread owes a result; None if it owes none. `waited_s` returns the total time that the thread
    and its helper threads were ready without a core. Check it several times a second."""

    def __init__(
        self, owes_since: Callable[[], float | None], waited_s: Callable[[], float]
    ) -> None:
        self._owes_since = owes_since
        self._owed = OwedTime(waited_s)

    def passed(self, now: float, limit_s: Callable[[], float]) -> float | None:
        """Return the limit in seconds if the thread has exceeded it, else None. `limit_s` is only
        called while a result is owed."""
        since = self._owes_since()
        spent_s = self._owed.spent_s(now, since)
        if since is None:
            return None
        limit = limit_s()
        return limit if spent_s > limit and self._owes_since() == since else None
