"""Finds dead processes that run jobs.

Pure. A process beats in the file while it runs jobs. Without a new beat for `LEASE_S` of our own
monotonic time it counts as dead; wall clocks play no part. An earlier process of our own number is
dead at once, because only one process has a number.
"""

from __future__ import annotations

from collections.abc import Iterable

LEASE_S = 10.0
"""Longer than the records thread of a living process may wait for the disk."""


def runner_name(number: int, boot: str) -> str:
    """Return the name of an HTTP process as a runner of jobs."""
    return f"h{number}-{boot}"


class LeaseWatch:
    """The last beats that one process, `name`, has seen of all job runners."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: dict[str, tuple[int, float]] = {}

    def dead(self, running: Iterable[tuple[str, int]], now: float) -> list[str]:
        """Return the dead runners. `running` holds (runner, beat) of each running job."""
        beats: dict[str, int] = {}
        for runner, beat in running:
            beats[runner] = beats.get(runner, 0) + beat
        self._seen = {
            runner: self._seen[runner]
            if runner in self._seen and self._seen[runner][0] == beat
            else (beat, now)
            for runner, beat in beats.items()
        }
        return [
            runner
            for runner, (_, since_at) in self._seen.items()
            if self._is_own_past(runner) or now - since_at >= LEASE_S
        ]

    def _is_own_past(self, runner: str) -> bool:
        number = self._name.partition("-")[0]
        return runner != self._name and runner.partition("-")[0] == number
