"""How long something has been waited for, in time in which it could have been done.

Pure: time arrives as `now`, and how long the watched threads had no core comes from a function
(`bus.process.clock.CoreWaits`). A deadline is for work. Two kinds of time do not count: time for
which the watched threads were ready and had no core, and time in which the watcher itself stood
still (a halted process, a paused or sleeping machine), for then the watched may have stood still
too. A thread that waits for a device that hangs does not wait for a core: all of its time counts.
"""

from __future__ import annotations

from collections.abc import Callable

MOST_GAP_S = 1.0
"""Of the time between two looks no more counts. Watchers look several times a second."""


class LostTime:
    """The time that does not count, from one look to the next. `waited_s` returns for how many
    seconds in all the watched threads have been ready without a core; who only passes by needs
    none. `woke_at` is till when the watcher last stood still; 0: it never did."""

    def __init__(self, waited_s: Callable[[], float] | None = None) -> None:
        self._waited_s = waited_s or (lambda: 0.0)
        self._looked_at: float | None = None
        self._known_s: float | None = None
        self.woke_at = 0.0

    def look(self, now: float) -> float:
        """Return how many seconds since the last look do not count."""
        before_s, self._known_s = self._known_s, self._waited_s()
        waited_s = 0.0 if before_s is None else self._known_s - before_s
        return max(self._stood_still_s(now), waited_s)

    def pass_by(self, now: float) -> float:
        """Do the same without asking for waits, which costs less: only standstills are seen."""
        self._known_s = None
        return self._stood_still_s(now)

    def _stood_still_s(self, now: float) -> float:
        before, self._looked_at = self._looked_at, now
        lost_s = 0.0 if before is None else max(0.0, now - before - MOST_GAP_S)
        self.woke_at = now if lost_s else self.woke_at
        return lost_s


class OwedTime:
    """How long one thing has been owed, less the time that does not count. To be asked at every
    look, also while nothing is owed."""

    def __init__(self, waited_s: Callable[[], float]) -> None:
        self._lost = LostTime(waited_s)
        self._since: float | None = None
        self._lost_s = 0.0

    def spent_s(self, now: float, since: float | None) -> float:
        """Return the seconds that count of what has been owed `since`; 0 where that is None."""
        if since is None or since != self._since:
            self._lost_s = self._lost.pass_by(now)
        else:
            self._lost_s += self._lost.look(now)
        self._since = since
        if since is None:
            return 0.0
        self._lost_s = min(self._lost_s, max(0.0, now - since))
        return now - since - self._lost_s
