"""Decides whether a runner still works. A silent runner is suspect after 2 s. A runner must make
progress while one of its requests could advance. It is suspect after 4 s without progress, and lost
after 12 s. Requests may leave it earlier: after 2 s of silence, or after 6 s without progress if it
was faster before.

Pure: time arrives as `now`. A runner owes progress while one of its requests could advance.
Progress is an arrived entry or a new step number of the *engine*. A runner that owes none is judged
only by whether it answers pings. If a tick of this process itself is late, the time limits start
again, because this process could not read the runner's messages meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["well", "suspect", "lost"]
SILENT_S = 2.0
SUSPECT_S = 4.0
STUCK_S = 6.0
STUCK_FACTOR = 3.0
"""Requests may leave a runner that has made no progress for `STUCK_S`, and for this many times as
long as its slowest progress took."""
LOST_S = 12.0
LATE_S = 2.0
"""If two ticks of this process are further apart than this, no runner is blamed for silence."""


@dataclass(slots=True)
class Liveness:
    """One runner's liveness, as one gateway process sees it.

    `moved_at`: when the runner last made progress or owed none. `heard_at`: when its last message
    arrived. `woke_at`: when the last stall of this process ended. `slowest_s`: the longest time
    that it has needed for progress while it owed some.
    """

    moved_at: float
    heard_at: float
    ticked_at: float
    step: int = -1
    woke_at: float = 0.0
    slowest_s: float = 0.0

    def pong(self, *, step: int, now: float) -> None:
        """Record the answer to a ping. It shows that the runner is alive and, if its step number
        has changed, that it makes progress."""
        self.heard_at = now
        if step != self.step:
            self.step = step
            self.entries(now)

    def entries(self, now: float) -> None:
        """Record progress, such as the arrival of a request's entries."""
        self.heard_at = now
        self.slowest_s = max(self.slowest_s, now - self.moved_at)
        self.moved_at = now

    @property
    def silent_at(self) -> float:
        """Return when the runner becomes suspect, unless a message of it arrives before."""
        return max(self.heard_at, self.woke_at) + SILENT_S

    @property
    def leave_at(self) -> float:
        """Return when requests may leave the runner for another, unless it answers or moves on
        before."""
        stuck_s = max(STUCK_S, STUCK_FACTOR * self.slowest_s)
        return min(self.silent_at, self.moved_at + stuck_s)

    def tick(self, *, owed: bool, now: float) -> Verdict:
        """Return the verdict on the runner. Call this every second. `owed`: some open request could
        make progress."""
        late = now - self.ticked_at > LATE_S
        self.ticked_at = now
        if late:
            self.heard_at = self.moved_at = self.woke_at = now
        if not owed:
            self.moved_at = now
        waited = max(now - self.moved_at, now - self.heard_at)
        if waited >= LOST_S:
            return "lost"
        return "suspect" if waited >= SUSPECT_S or now >= self.silent_at else "well"
