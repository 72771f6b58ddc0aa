"""Finds out which processes that run jobs have died.

Pure. While a process runs jobs, it increments a counter (its beat) in the records file. If a
process's beat has not changed for `LEASE_S`, by the monotonic clock of the process that watches, it
counts as dead. Wall clocks play no part. Each process has a number, and only one living process has
each number. So an earlier process with our number counts as dead immediately.
"""

from __future__ import annotations

from collections.abc import Iterable

LEASE_S = 10.0
"""A process whose beat has not changed for this long counts as dead. The records thread of a living
process never waits that long for the disk."""


def runner_name(number: int, boot: str) -> str:
    """Return the name of an HTTP process as a runner of jobs."""
    return f"h{number}-{boot}"


class LeaseWatch:
    """The last beats (counters that grow while a process lives) of all job runners that the process
    `name` has seen."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: dict[str, tuple[int, float]] = {}

    def dead(self, running: Iterable[tuple[str, int]], now: float) -> list[str]:
        """Return the names of the job runners that have died. `running` has (runner, beat) of each
        running job."""
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
