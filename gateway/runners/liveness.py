"""Is a runner still at work? Suspected after 4 s without progress that it owes, lost after 12.

Pure: time arrives as `now`. Progress is an entry that arrived or the *engine's* step number
moving; where nothing is owed, its silence alone is measured. A tick of our own that comes
late forgives what it could not have heard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["well", "suspect", "lost"]
SUSPECT_S = 4.0
LOST_S = 12.0
LATE_S = 2.0
"""A gap between two of our own ticks beyond which nobody is blamed for silence."""


@dataclass(slots=True)
class Liveness:
    """One runner as one gateway process sees it. `moved_at` is when it last made progress or
    owed none; `heard_at` when it last said anything; `woke_at` when we last stood still till."""

    moved_at: float
    heard_at: float
    ticked_at: float
    step: int = -1
    woke_at: float = 0.0

    def pong(self, *, step: int, now: float) -> None:
        """Note an answered ping: alive; at work if its step moved."""
        self.heard_at = now
        if step != self.step:
            self.step = step
            self.moved_at = now

    def entries(self, now: float) -> None:
        """Note that the runner sent something of a request."""
        self.heard_at = self.moved_at = now

    def tick(self, *, owed: bool, now: float) -> Verdict:
        """Return the verdict, each second. `owed`: some open request here could move."""
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
