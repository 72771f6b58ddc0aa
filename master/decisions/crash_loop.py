"""Instances that fail again and again: given up after three failures within a minute.

A runner that says that its device may be wedged counts twice; one that says that its model
cannot be loaded is not tried again at all. Pure. Times are not in the state (only the holder's
clock knows them); a new holder counts afresh, which costs at most two more attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.ids import InstanceId

LIMIT = 3
WINDOW_S = 60.0
WEDGED = 70
LOAD_FAILED = 72
"""Exit codes of `runner.lifecycle` that bear on trying again."""


@dataclass(slots=True)
class CrashLoops:
    """Recent failures of each instance, oldest first, none older than the window."""

    failures: dict[InstanceId, list[float]] = field(default_factory=dict[InstanceId, list[float]])

    def count_failure(self, instance: InstanceId, exit_code: int | None, now: float) -> bool:
        """Count one failure; return whether the instance is to be given up."""
        recent = [at for at in self.failures.get(instance, []) if now - at < WINDOW_S]
        recent += [now, now] if exit_code == WEDGED else [now]
        self.failures[instance] = recent
        return exit_code == LOAD_FAILED or len(recent) >= LIMIT

    def forget(self, instance: InstanceId) -> None:
        """Drop the failures of an instance that is gone or was asked for anew."""
        self.failures.pop(instance, None)
