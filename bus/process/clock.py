"""Talks to the clocks: the only code that reads them for the bus and the services' shells.

`now()` counts seconds from an arbitrary point, also while the machine sleeps. So a leader that
slept knows that its term has lapsed. `wall()` is for people and files. `CoreWaits` and
`MachineWaits` measure the time in which threads had no core, for `bus.patience`.
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
"""The least share of a core that a thread is assumed to have on a crowded machine. So a deadline is
extended at most tenfold."""
ZMQ_THREADS = "ZMQbg"
"""How the names of ZeroMQ's own threads begin."""

Tasks = Callable[[], Iterable[int]]


now: Callable[[], float] = (
    time.monotonic if _SLEEPLESS is None else partial(time.clock_gettime, _SLEEPLESS)
)
"""Return the monotonic time in seconds. It also counts while the machine sleeps (Linux
CLOCK_BOOTTIME, macOS CLOCK_MONOTONIC_RAW)."""


def wall() -> float:
    """Return the seconds since the epoch."""
    return time.time()


class CoreWaits:
    """Call it to get the total seconds in which the threads of a process were ready and had no
    core.

    Between two calls, only the thread that waited longest counts. Waits before the first call do
    not count. `tasks` returns the thread ids. Only Linux reports this per thread
    (`/proc/PID/task/TID/schedstat`); elsewhere `MachineWaits` estimates it.
    """

    def __init__(self, tasks: Tasks, pid: int | None = None) -> None:
        self._tasks = tasks
        self._folder = f"/proc/{pid or 'self'}/task"
        self._waits_before: dict[int, float] | None = None
        self._total_s = 0.0
        self._machine = None if Path("/proc/self/schedstat").exists() else MachineWaits()

    def __call__(self) -> float:
        if self._machine is not None:
            return self._machine()
        waits_s: dict[int, float] = {}
        for task in self._tasks():
            with contextlib.suppress(OSError, IndexError, ValueError):
                content = Path(f"{self._folder}/{task}/schedstat").read_bytes()
                waits_s[task] = int(content.split()[1]) / 1e9
        before, self._waits_before = self._waits_before, waits_s
        if before is not None:
            waits = (waited_s - before.get(task, 0.0) for task, waited_s in waits_s.items())
            self._total_s += max(0.0, *waits, 0.0)
        return self._total_s


class MachineWaits:
    """Call it to get an estimate of the seconds in which a ready thread of this machine had no
    core, from the number of runnable threads. For services that wait for other processes.

    Linux reports how many threads want a core now, macOS how many did in the last minute.
    """

    def __init__(self, runnable: Callable[[], float] | None = None) -> None:
        self._runnable = runnable or runnable_now
        self._looked_at = now()
        self._total_s = 0.0

    def __call__(self) -> float:
        before, self._looked_at = self._looked_at, now()
        share = core_share(self._runnable(), os.cpu_count() or 1)
        self._total_s += (self._looked_at - before) * (1.0 - share)
        return self._total_s


def core_share(runnable: float, cores: int) -> float:
    """Return each thread's share of a core if `runnable` threads compete, at least
    `LEAST_CORE_SHARE`."""
    return min(1.0, max(LEAST_CORE_SHARE, cores / max(1.0, runnable)))


def runnable_now() -> float:
    """Return how many threads of the machine are running or ready."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/stat").read_bytes().splitlines()
        return float(next(line for line in lines if line.startswith(b"procs_running")).split()[1])
    return os.getloadavg()[0]


def tasks_of(pid: int) -> Tasks:
    """Return a function that lists the ids of all threads of a process; none if the process is
    gone."""

    def tasks() -> list[int]:
        with contextlib.suppress(OSError):
            return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        return []

    return tasks


def working_tasks(*names: str) -> Tasks:
    """Return a function that lists the ids of this process's working threads: Python's threads with
    these names, and all threads of libraries except ZeroMQ's."""
    is_zmq: dict[int, bool] = {}

    def tasks() -> list[int]:
        others = {thread.native_id for thread in threading.enumerate() if thread.name not in names}
        threads = [task for task in tasks_of(os.getpid())() if task not in others]
        for task in threads:
            if task not in is_zmq:
                is_zmq[task] = _name_of(task).startswith(ZMQ_THREADS)
        return [task for task in threads if not is_zmq[task]]

    return tasks


def _name_of(task: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/task/{task}/comm").read_text()
    return ""
