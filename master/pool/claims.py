"""Claims of models on memory, and their urgency.

Pure. A claim is a model's demand for memory. A smaller priority is more urgent. Waiting claims age
smoothly: their standing falls steadily and ends just behind the urgent class, which no claim
reaches by age. No claim evicts a pinned model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bus.replica.state import ClusterState
from bus.wire.ids import ModelId
from bus.wire.instances import Instance

URGENT = 1
"""Claims of this class, or of a smaller number, do not wait for the minimum residency of other
models' instances."""
FLOOR = URGENT + 1
"""The best standing that a claim reaches by waiting."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A model that should be loaded. `waiting`: for each priority with waiting requests, (priority,
    since when the oldest request waits). `kind`: who waits."""

    model: ModelId
    waiting: tuple[tuple[int, float], ...]
    kind: str = "demand"

    @property
    def priority(self) -> int:
        """Return the most urgent priority among the waiting requests."""
        return min(priority for priority, _ in self.waiting)

    @property
    def since_at(self) -> float:
        """Return when the oldest waiting request began to wait."""
        return min(since_at for _, since_at in self.waiting)

    @property
    def is_urgent(self) -> bool:
        """Return whether this claim is urgent enough to ignore the minimum residency of other
        models' instances."""
        return self.priority <= URGENT

    def standing(self, ageing_per_s: float, now: float) -> float:
        """Return the lowest `aged` priority of the waiting requests. The claim with the lowest
        number goes first."""
        return min(aged(priority, now - at, ageing_per_s) for priority, at in self.waiting)

    def passes_at(self, priority: float, ageing_per_s: float) -> float:
        """Return when this claim's standing reaches the class `priority` by ageing; infinity if it
        never does."""
        return min(_passes_at(mine, at, priority, ageing_per_s) for mine, at in self.waiting)


def aged(priority: int, waited_s: float, ageing_per_s: float) -> float:
    """Return the aged priority (the *standing*) of a request: its priority, lowered by
    `ageing_per_s` for each second that it has waited. The urgent class does not age."""
    return max(float(min(priority, FLOOR)), priority - ageing_per_s * max(0.0, waited_s))


def pinned_by(instance: Instance, state: ClusterState) -> str | None:
    """Return who has pinned an instance's model; None if it is not pinned."""
    pin = state.pins.get(instance.model)
    if pin is not None:
        return pin.by or "an operator"
    return "the preload list or its placement" if instance.pinned else None


def _passes_at(mine: int, since_at: float, priority: float, ageing_per_s: float) -> float:
    if mine <= priority:
        return since_at
    if priority < FLOOR or ageing_per_s <= 0.0:
        return math.inf
    return since_at + (mine - priority) / ageing_per_s
