"""When to give an instance up: three failures within a minute (S16).

Pure. Times are not in the state (only the holder's clock knows them); a new holder counts
afresh, which costs at most two more attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.ids import InstanceId

LIMIT = 3
WINDOW_S = 60.0


@dataclass(slots=True)
class Breaker:
    """Recent failures of each instance, oldest first, none older than the window."""

    failures: dict[InstanceId, list[float]] = field(default_factory=dict[InstanceId, list[float]])

    def failed(self, instance: InstanceId, now: float) -> bool:
        """Count one failure; True when it was one too many."""
        recent = [at for at in self.failures.get(instance, []) if now - at < WINDOW_S]
        recent.append(now)
        self.failures[instance] = recent
        return len(recent) >= LIMIT

    def forget(self, instance: InstanceId) -> None:
        """The instance is gone, or has been asked for anew."""
        self.failures.pop(instance, None)
