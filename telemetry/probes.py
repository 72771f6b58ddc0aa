"""Talks to psutil: the use of this machine and of its processes, as plain numbers.

Probes remember nothing. Counters (processor seconds) are given as counters, of which `Rates`
makes rates over a sliding window, by the instants that it is given. A process that is gone reads
as None.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from bus.hardware.thunderbolt import reading_of
from bus.process.tools import asked
from bus.wire.messages.readings import ThunderboltReading

VM_STAT_TIMEOUT_S = 2.0
PROFILER_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The machine's memory. `available_bytes` can be taken without swapping.

    `wired_bytes` is macOS's (None elsewhere): memory that cannot be paged out, where a lost Metal
    buffer shows.
    """

    total_bytes: int
    available_bytes: int
    wired_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that holds a folder."""

    total_bytes: int
    free_bytes: int


def damaged_files(folder: Path) -> tuple[str, ...]:
    """Return the paths of the damaged files that were kept aside in a folder."""
    return tuple(str(path) for path in sorted(folder.glob("*.damaged")))


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process now. `cpu_s` is user + system since it started."""

    pid: int
    cpu_s: float
    resident_bytes: int
    threads: int
    started_at_s: float


def memory() -> MemoryUse:
    """Return total and available memory: MemAvailable on Linux, on macOS total - wired -
    anonymous - compressor, for what macOS calls free leaves out the file cache."""
    seen = psutil.virtual_memory()
    if sys.platform == "darwin":
        pages = vm_stat_counts(asked("/usr/bin/vm_stat", timeout_s=VM_STAT_TIMEOUT_S))
        found = macos_available(seen.total, pages)
        if found is not None:
            return found
    return MemoryUse(seen.total, seen.available)


def macos_available(total_bytes: int, counts: Mapping[str, int]) -> MemoryUse | None:
    """Return memory from `vm_stat`'s counts in bytes, or None when one of them is missing."""
    names = ("Pages wired down", "Anonymous pages", "Pages occupied by compressor")
    wired, anonymous, compressor = (counts.get(name) for name in names)
    if wired is None or anonymous is None or compressor is None:
        return None
    return MemoryUse(total_bytes, max(0, total_bytes - wired - anonymous - compressor), wired)


def vm_stat_counts(text: str) -> dict[str, int]:
    """Return the lines of `vm_stat` as bytes by name; the page size is in its first line."""
    size = re.search(r"page size of (\d+) bytes", text)
    page_bytes = int(size.group(1)) if size else 4096
    found = re.findall(r'^"?([A-Za-z][^:"]*)"?:\s+(\d+)\.?$', text, flags=re.MULTILINE)
    return {name: int(count) * page_bytes for name, count in found}


def thunderbolt() -> ThunderboltReading | None:
    """Return the Thunderbolt ports of a Mac, None elsewhere or where its tools do not tell them.

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
    """Return the busy processor seconds since the machine started, over all cores."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Linux counts guests within user time, so a plain sum would count them twice.
    twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - idle - twice


def load_1m() -> float:
    """Return the number of runnable processes, averaged over a minute."""
    return os.getloadavg()[0]


def disk(folder: Path) -> Disk:
    """Return the file system of `folder`, or of its nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = psutil.disk_usage(str(folder))
    return Disk(usage.total, usage.free)


def process(pid: int) -> ProcessSample | None:
    """Return the use of a process, or None when there is none or it may not be read."""
    try:
        found = psutil.Process(pid)
        with found.oneshot():
            times = found.cpu_times()
            return ProcessSample(
                pid=pid,
                cpu_s=times.user + times.system,
                resident_bytes=found.memory_info().rss,
                threads=found.num_threads(),
                started_at_s=found.create_time(),
            )
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def is_there(pid: int) -> bool:
    """Return whether there is a process of this pid."""
    return psutil.pid_exists(pid)


def children(pid: int) -> list[int]:
    """Return the pids of a process's own children, oldest first; none when it is gone."""
    try:
        found = psutil.Process(pid).children()
        return [child.pid for child in sorted(found, key=_born)]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def _born(child: psutil.Process) -> tuple[float, int]:
    return (child.create_time(), child.pid)


@dataclass(frozen=True, slots=True)
class Window:
    """Samples (instant, value) of one counter, oldest first, no older than `span_s` but for
    one, so that the rate always covers the whole span.

    A counter that goes backwards belongs to a new life of what is measured: the window starts
    anew. A single sample has no rate.
    """

    span_s: float
    samples: tuple[tuple[float, float], ...] = ()

    def add(self, at: float, value: float) -> Window:
        """Return the window with one more sample; one that is not newer changes nothing."""
        if self.samples and at <= self.samples[-1][0]:
            return self
        if self.samples and value < self.samples[-1][1]:
            return Window(self.span_s, ((at, value),))
        kept = (*self.samples, (at, value))
        while len(kept) > 2 and kept[1][0] <= at - self.span_s:
            kept = kept[1:]
        return Window(self.span_s, kept)

    @property
    def per_s(self) -> float:
        """Return the growth per second from oldest to newest sample; 0.0 for fewer than two."""
        if len(self.samples) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self.samples[0], self.samples[-1]
        return (last - first) / (last_at - first_at)


class Rates:
    """The rates of many counters: one window per key, until `keep` forgets it."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._windows: dict[object, Window] = {}

    def rate(self, key: object, at: float, value: float) -> float:
        """Add a sample of `key` and return its rate per second."""
        window = self._windows.get(key, Window(self._span_s)).add(at, value)
        self._windows[key] = window
        return window.per_s

    def keep(self, keys: set[object]) -> None:
        """Forget every key that is not in `keys`."""
        self._windows = {key: window for key, window in self._windows.items() if key in keys}
