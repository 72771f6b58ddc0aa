"""Talks to psutil: the load of this machine and of its processes, as plain numbers.

Probes keep no state. They return counters such as processor seconds. `Rates` turns the counters
into rates over a sliding window; its caller passes the instants. A process that has ended reads as
None.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from bus.hardware.thunderbolt import reading_of
from bus.process.clock import wall
from bus.process.supervisor import Status, SupervisedProcess
from bus.process.tools import asked
from bus.wire.messages.readings import ThunderboltReading

VM_STAT_TIMEOUT_S = 2.0
PROFILER_TIMEOUT_S = 20.0
LIST_S = 10.0
"""Seconds between two questions to supervisord on a calm node. A question costs supervisord and us
more than all other measurements of a reading."""
CALM: frozenset[Status] = frozenset({"running", "stopped", "exited", "fatal"})


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The machine's memory. `available_bytes` can be used without swapping.

    `wired_bytes`, on macOS alone, is memory that cannot be paged out; a leaked Metal buffer
    increases it.
    """

    total_bytes: int
    available_bytes: int
    wired_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """The size and the free space, in bytes, of the file system that a folder is on."""

    total_bytes: int
    free_bytes: int


def damaged_files(folder: Path) -> tuple[str, ...]:
    """Return the paths of the damaged files that were set aside in a folder."""
    return tuple(str(path) for path in sorted(folder.glob("*.damaged")))


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """The figures of one process at one instant. `cpu_s` is its user plus system time since its
    start. `started` identifies that start: another process with the same pid has another value."""

    pid: int
    cpu_s: float
    resident_bytes: int
    threads: int
    started: float
    uptime_s: float


def memory() -> MemoryUse:
    """Return total and available memory.

    Available memory is MemAvailable on Linux. On macOS it is total - wired - anonymous -
    compressor, because macOS's free memory leaves out the file cache.
    """
    system = psutil.virtual_memory()
    if sys.platform == "darwin":
        pages = vm_stat_counts(asked("/usr/bin/vm_stat", timeout_s=VM_STAT_TIMEOUT_S))
        use = macos_available(system.total, pages)
        if use is not None:
            return use
    return MemoryUse(system.total, system.available)


def macos_available(total_bytes: int, counts: Mapping[str, int]) -> MemoryUse | None:
    """Return the memory from `vm_stat`'s counts in bytes; None if one of them is missing."""
    names = ("Pages wired down", "Anonymous pages", "Pages occupied by compressor")
    wired, anonymous, compressor = (counts.get(name) for name in names)
    if wired is None or anonymous is None or compressor is None:
        return None
    return MemoryUse(total_bytes, max(0, total_bytes - wired - anonymous - compressor), wired)


def vm_stat_counts(text: str) -> dict[str, int]:
    """Return `vm_stat`'s counts in bytes by name; the first line has the page size."""
    size = re.search(r"page size of (\d+) bytes", text)
    page_bytes = int(size.group(1)) if size else 4096
    counts = re.findall(r'^"?([A-Za-z][^:"]*)"?:\s+(\d+)\.?$', text, flags=re.MULTILINE)
    return {name: int(count) * page_bytes for name, count in counts}


def thunderbolt() -> ThunderboltReading | None:
    """Return the Thunderbolt ports of a Mac; None on other systems, or if macOS's tools print
    nothing.

    Takes a second or more.
    """
    if sys.platform != "darwin":
        return None
    ask = partial(asked, timeout_s=PROFILER_TIMEOUT_S)
    profile = ask("/usr/sbin/system_profiler", "SPThunderboltDataType", "-json")
    order = ask("/usr/sbin/networksetup", "-listnetworkserviceorder")
    return reading_of(profile, order) if profile and order else None


def cores() -> int:
    """Return the number of logical processors."""
    return psutil.cpu_count() or 1


def cpu_busy_s() -> float:
    """Return the busy processor seconds of all cores since the machine started."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Linux counts guests within user time, so a plain sum would count them twice.
    twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - idle - twice


def load_1m() -> float:
    """Return the number of runnable processes, averaged over a minute."""
    return os.getloadavg()[0]


def disk(folder: Path) -> Disk:
    """Return the size and free space of the file system of `folder`; if that does not exist, of its
    nearest existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = psutil.disk_usage(str(folder))
    return Disk(usage.total, usage.free)


def process(pid: int) -> ProcessSample | None:
    """Return a sample of a process; None if it has ended or may not be read."""
    if sys.platform == "linux":
        return _linux_process(pid)
    try:
        live = psutil.Process(pid)
        with live.oneshot():
            times, started = live.cpu_times(), live.create_time()
            return ProcessSample(
                pid=pid,
                cpu_s=times.user + times.system,
                resident_bytes=live.memory_info().rss,
                threads=live.num_threads(),
                started=started,
                uptime_s=max(0.0, wall() - started),
            )
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _linux_process(pid: int) -> ProcessSample | None:
    """Return the same from one file, `/proc/<pid>/stat` (proc_pid_stat(5)). psutil opens eight
    files per process, which was most of the processor time of an idle telemetry process."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = line[line.rindex(b")") + 2 :].split()  # the name before it may contain anything
    user, system, threads, started, pages = (int(fields[at]) for at in (11, 12, 17, 19, 21))
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return ProcessSample(
        pid=pid,
        cpu_s=(user + system) / ticks_per_s,
        resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        threads=threads,
        started=started,
        uptime_s=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / ticks_per_s),
    )


def is_there(pid: int) -> bool:
    """Return whether a process with this pid exists."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # a pid from a file's name may be any number
        return False
    except PermissionError:
        pass
    return True


def children(pid: int) -> list[int]:
    """Return the pids of a process's direct children, oldest first; none if it has ended."""
    try:
        processes = psutil.Process(pid).children()
        return [child.pid for child in sorted(processes, key=_born)]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def _born(child: psutil.Process) -> tuple[float, int]:
    return (child.create_time(), child.pid)


@dataclass(frozen=True, slots=True)
class Window:
    """Samples (instant, value) of one counter, oldest first. All but the first are from the last
    `span_s` seconds; the first may be older, so that the rate covers the whole span.

    If a counter decreases, its process has restarted, and the window starts again. A single sample
    has no rate.
    """

    span_s: float
    samples: tuple[tuple[float, float], ...] = ()

    def add(self, at: float, value: float) -> Window:
        """Return the window with one more sample. A sample that is not newer changes nothing."""
        if self.samples and at <= self.samples[-1][0]:
            return self
        if self.samples and value < self.samples[-1][1]:
            return Window(self.span_s, ((at, value),))
        samples = (*self.samples, (at, value))
        while len(samples) > 2 and samples[1][0] <= at - self.span_s:
            samples = samples[1:]
        return Window(self.span_s, samples)

    @property
    def per_s(self) -> float:
        """Return the growth per second from the oldest to the newest sample; 0.0 for fewer than
        two."""
        if len(self.samples) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self.samples[0], self.samples[-1]
        return (last - first) / (last_at - first_at)


class SupervisorList:
    """supervisord's list of processes, which is asked for as rarely as possible. `ask` returns the
    current list."""

    def __init__(self, ask: Callable[[], Sequence[SupervisedProcess]]) -> None:
        self._ask = ask
        self._last: Sequence[SupervisedProcess] = ()
        self._asked_at = -LIST_S
        self._is_old = False

    def renew(self) -> None:
        """Let `at` ask supervisord the next time. Any thread may call this."""
        self._is_old = True

    def at(self, now: float) -> Sequence[SupervisedProcess]:
        """Return the list. The last one is reused for `LIST_S`, unless one of its processes has
        ended, supervisord is starting or stopping one, or `renew` was called."""
        is_calm = all(
            process.status in CALM and (not process.pid or is_there(process.pid))
            for process in self._last
        )
        if not self._last or not is_calm or self._is_old or now - self._asked_at >= LIST_S:
            self._is_old = False
            self._last, self._asked_at = self._ask(), now
        return self._last


class Rates:
    """The rates of many counters: one window per key, until `keep` drops it."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._windows: dict[object, Window] = {}

    def rate(self, key: object, at: float, value: float) -> float:
        """Add a sample of `key` and return its rate per second."""
        window = self._windows.get(key, Window(self._span_s)).add(at, value)
        self._windows[key] = window
        return window.per_s

    def keep(self, keys: set[object]) -> None:
        """Drop the samples of every counter whose key is not in `keys`."""
        self._windows = {key: window for key, window in self._windows.items() if key in keys}
