"""Which processes have died that run jobs.

Pure. A process beats in the file while it runs jobs. One that is never seen to beat for `LEASE_S`
of our own monotonic time has died, clocks that are set say nothing of it. So has at once an earlier
process of our own number: a number is held by one process.
"""

from __future__ import annotations

from collections.abc import Iterable

LEASE_S = 10.0
"""Longer than the records thread of a living process may wait for the disk."""


def runner_name(number: int, boot: str) -> str:
    """Return how an HTTP process names itself as the runner of jobs."""
    return f"h{number}-{boot}"


class LeaseWatch:
    """What one process, `name`, has seen of all that run jobs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: dict[str, tuple[int, float]] = {}

    def dead(self, held: Iterable[tuple[str, int]], now: float) -> list[str]:
        """Return the runners that have died, of those that have jobs now, each with the sum of its
        beats."""
        beats: dict[str, int] = {}
        for runner, beat in held:
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
