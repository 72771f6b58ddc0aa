"""Who wants a model in memory, and how urgently: what counts lives, and is never stored.

Pure. A priority is smaller the more urgent it is. What waits ages without a cliff: its standing
falls steadily, and ends just behind the urgent class, which nothing ages into. A pin is a claim
that nothing displaces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bus.replica.state import ClusterState
from bus.wire.ids import ModelId
from bus.wire.instances import Instance

URGENT = 1
"""Claims of this class or a smaller number do not wait for turns of others."""
FLOOR = URGENT + 1
"""Nothing ages further than this."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A model that is to come into memory. `waiting` are the classes of those who wait, each
    (priority, since when its oldest waits); `kind` says who they are."""

    model: ModelId
    waiting: tuple[tuple[int, float], ...]
    kind: str = "demand"

    @property
    def priority(self) -> int:
        """Return the most urgent class that waits."""
        return min(priority for priority, _ in self.waiting)

    @property
    def since_at(self) -> float:
        """Return since when the oldest waits."""
        return min(since_at for _, since_at in self.waiting)

    @property
    def is_urgent(self) -> bool:
        """Return whether it waits for no turn."""
        return self.priority <= URGENT

    def standing(self, ageing_per_s: float, now: float) -> float:
        """Return the best standing of those who wait; the smaller goes first."""
        return min(aged(priority, now - at, ageing_per_s) for priority, at in self.waiting)

    def passes_at(self, priority: float, ageing_per_s: float) -> float:
        """Return when it will stand no worse than a class; infinite for never."""
        return min(_passes_at(mine, at, priority, ageing_per_s) for mine, at in self.waiting)


def aged(priority: int, waited_s: float, ageing_per_s: float) -> float:
    """Return the standing of one that has waited so long; the urgent class does not age."""
    return max(float(min(priority, FLOOR)), priority - ageing_per_s * max(0.0, waited_s))


def pinned_by(instance: Instance, state: ClusterState) -> str | None:
    """Return who has pinned a copy's model; None where it is not pinned."""
    pin = state.pins.get(instance.model)
    if pin is not None:
        return pin.by or "an operator"
    return "the preload list, or its placement" if instance.pinned else None


def _passes_at(mine: int, since_at: float, priority: float, ageing_per_s: float) -> float:
    if mine <= priority:
        return since_at
    if priority < FLOOR or ageing_per_s <= 0.0:
        return math.inf
    return since_at + (mine - priority) / ageing_per_s
