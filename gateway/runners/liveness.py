"""Is a runner still working? It is suspect after 4 s without progress that it owes, and lost after
12 s.

Pure: time arrives as `now`. Progress is an arrived entry or a new step number of the *engine*. If
no progress is owed, only silence counts. A late tick of our own resets the times, because the
runner's messages could not be read meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["well", "suspect", "lost"]
SUSPECT_S = 4.0
LOST_S = 12.0
LATE_S = 2.0
"""After a longer gap between two of our own ticks, no runner is blamed for silence."""


@dataclass(slots=True)
class Liveness:
    """One runner's liveness, as one gateway process sees it.

    `moved_at`: its last progress, or the last time that it owed none. `heard_at`: its last message.
    `woke_at`: the end of our own last stall.
    """

    moved_at: float
    heard_at: float
    ticked_at: float
    step: int = -1
    woke_at: float = 0.0

    def pong(self, *, step: int, now: float) -> None:
        """Count an answered ping: the runner is alive, and working if its step has changed."""
        self.heard_at = now
        if step != self.step:
            self.step = step
            self.moved_at = now

    def entries(self, now: float) -> None:
        """Count the arrival of a request's entries."""
        self.heard_at = self.moved_at = now

    def tick(self, *, owed: bool, now: float) -> Verdict:
        """Return the verdict; called every second. `owed`: some open request could make
        progress."""
        late = now - self.ticked_at > LATE_S
        self.ticked_at = now
        if late:
            self.heard_at = self.moved_at = self.woke_at = now
        if not owed:
            self.moved_at = now
        waited = max(now - self.moved_at, now - self.heard_at)
        if waited >= LOST_S:
            return "lost"
        return "suspect" if waited >= SUSPECT_S else "well"
