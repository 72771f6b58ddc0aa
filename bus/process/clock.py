"""Talks to the clocks: the only place that reads them for the bus and the services' shells.

`now()` counts seconds from an arbitrary point and keeps counting while the machine sleeps, so
that a holder that slept knows that its term has lapsed. `wall()` is for people and files.
`CoreWaits` and `MachineWaits` count time in which threads had no core, for `bus.patience`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

_SLEEPLESS = getattr(time, "CLOCK_BOOTTIME", None) or getattr(time, "CLOCK_MONOTONIC_RAW", None)
LEAST_CORE_SHARE = 0.1
"""Of a core, that a thread is taken to have on a crowded machine: a deadline there is at most ten
times as long."""
ZMQ_THREADS = "ZMQbg"
"""How ZeroMQ names its own threads."""

Tasks = Callable[[], Iterable[int]]


now: Callable[[], float] = (
    time.monotonic if _SLEEPLESS is None else partial(time.clock_gettime, _SLEEPLESS)
)
"""Return monotonic seconds with sleep (Linux CLOCK_BOOTTIME, macOS CLOCK_MONOTONIC_RAW)."""


def wall() -> float:
    """Return the seconds since the epoch."""
    return time.time()


class CoreWaits:
    """For how long the threads of a process were ready and had no core, all in all, in seconds.

    Between two calls that of the thread counts which waited longest; what waited before the first
    call does not count. `tasks` names the threads. Linux alone tells this of a thread
    (`/proc/PID/task/TID/schedstat`); elsewhere `MachineWaits` has to do.
    """

    def __init__(self, tasks: Tasks, pid: int | None = None) -> None:
        self._tasks = tasks
        self._folder = f"/proc/{pid or 'self'}/task"
        self._known: dict[int, float] | None = None
        self._total_s = 0.0
        self._machine = None if Path("/proc/self/schedstat").exists() else MachineWaits()

    def __call__(self) -> float:
        """Return the seconds so far."""
        if self._machine is not None:
            return self._machine()
        found: dict[int, float] = {}
        for task in self._tasks():
            with contextlib.suppress(OSError, IndexError, ValueError):
                told = Path(f"{self._folder}/{task}/schedstat").read_bytes()
                found[task] = int(told.split()[1]) / 1e9
        known, self._known = self._known, found
        if known is not None:
            waits = (waited_s - known.get(task, 0.0) for task, waited_s in found.items())
            self._total_s += max(0.0, *waits, 0.0)
        return self._total_s


class MachineWaits:
    """For how long a thread of this machine that was ready had no core, by how many there are that
    run or want to, in seconds: an estimate for those who wait for other processes.

    Linux tells how many want a core at this instant, macOS how many did in the last minute.
    """

    def __init__(self, runnable: Callable[[], float] | None = None) -> None:
        self._runnable = runnable or runnable_now
        self._looked_at = now()
        self._total_s = 0.0

    def __call__(self) -> float:
        """Return the seconds so far."""
        before, self._looked_at = self._looked_at, now()
        share = core_share(self._runnable(), os.cpu_count() or 1)
        self._total_s += (self._looked_at - before) * (1.0 - share)
        return self._total_s


def core_share(runnable: float, cores: int) -> float:
    """Return which share of a core one of so many threads has, `LEAST_CORE_SHARE` at the least."""
    return min(1.0, max(LEAST_CORE_SHARE, cores / max(1.0, runnable)))


def runnable_now() -> float:
    """Return how many threads of the machine run or want to."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/stat").read_bytes().splitlines()
        return float(next(one for one in lines if one.startswith(b"procs_running")).split()[1])
    return os.getloadavg()[0]


def tasks_of(pid: int) -> Tasks:
    """Return what names all threads of a process; none where it is gone."""

    def tasks() -> list[int]:
        """Return them."""
        with contextlib.suppress(OSError):
            return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        return []

    return tasks


def working_tasks(*names: str) -> Tasks:
    """Return what names the threads of this process that work: Python's of these names, and all
    that libraries have started, but for ZeroMQ's."""
    is_zmq: dict[int, bool] = {}

    def tasks() -> list[int]:
        """Return them."""
        others = {one.native_id for one in threading.enumerate() if one.name not in names}
        found = [task for task in tasks_of(os.getpid())() if task not in others]
        for task in found:
            if task not in is_zmq:
                is_zmq[task] = _name_of(task).startswith(ZMQ_THREADS)
        return [task for task in found if not is_zmq[task]]

    return tasks


def _name_of(task: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/task/{task}/comm").read_text()
    return ""
