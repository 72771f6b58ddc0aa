"""Deadlines that count only the time in which the awaited work could have been done.

Pure: time arrives as `now`; the time that the watched threads waited for a processor core comes
from a function (`bus.process.clock.CoreWaits`). A watcher sets a deadline for the work of other
threads. Two kinds of time do not count. The first is time in which the watched threads were ready
but had no core. The second is time in which the watcher itself stood still (a halted process, a
paused or sleeping machine), because the watched threads may have stood still too. A thread that
waits for a hung device does not wait for a core, so all of its time counts.
"""

from __future__ import annotations

from collections.abc import Callable

MOST_GAP_S = 1.0
"""At most this much of the time between two calls of `look` counts. Watchers call it several times
a second."""


class LostTime:
    """Measures the time that does not count towards a deadline between one call of `look` and the
    next. `waited_s` returns the total seconds in which the watched threads were ready without a
    core; `pass_by` does not need it. `woke_at` is the end of the watcher's last standstill; 0 if
    there was none."""

    def __init__(self, waited_s: Callable[[], float] | None = None) -> None:
        self._waited_s = waited_s or (lambda: 0.0)
        self._looked_at: float | None = None
        self._last_waited_s: float | None = None
        self.woke_at = 0.0

    def look(self, now: float) -> float:
        """Return how many seconds since the last call do not count towards a deadline."""
        before_s, self._last_waited_s = self._last_waited_s, self._waited_s()
        waited_s = 0.0 if before_s is None else self._last_waited_s - before_s
        return max(self._stood_still_s(now), waited_s)

    def pass_by(self, now: float) -> float:
        """Return the seconds that the watcher stood still since the last call. Cheaper than `look`,
        because it does not call `waited_s`."""
        self._last_waited_s = None
        return self._stood_still_s(now)

    def _stood_still_s(self, now: float) -> float:
        before, self._looked_at = self._looked_at, now
        lost_s = 0.0 if before is None else max(0.0, now - before - MOST_GAP_S)
        self.woke_at = now if lost_s else self.woke_at
        return lost_s


class OwedTime:
    """Measures how long we have waited for a result from other threads. Time in which they had no
    processor core, or in which this process stood still, does not count (`LostTime`). Call
    `spent_s` regularly, also while no result is expected."""

    def __init__(self, waited_s: Callable[[], float]) -> None:
        self._lost = LostTime(waited_s)
        self._since: float | None = None
        self._lost_s = 0.0

    def spent_s(self, now: float, since: float | None) -> float:
        """Return the seconds since `since` that count towards the deadline; 0 if `since` is
        None."""
        if since is None or since != self._since:
            self._lost_s = self._lost.pass_by(now)
        else:
            self._lost_s += self._lost.look(now)
        self._since = since
        if since is None:
            return 0.0
        self._lost_s = min(self._lost_s, max(0.0, now - since))
        return now - since - self._lost_s
