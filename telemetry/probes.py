"""Talks to psutil: what this machine and its processes use, as plain numbers.

Nothing here decides or remembers. Counters (processor seconds) are given as counters; the
rates are made in `telemetry.window`. A process that is gone reads as None.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from bus.hardware.thunderbolt import reading_of
from bus.wire.messages.readings import ThunderboltReading

VM_STAT_TIMEOUT_S = 2.0
PROFILER_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """`available_bytes` can be taken without swapping. `wired_bytes` is macOS's (None elsewhere):
    memory that cannot be paged out, where a lost Metal buffer shows."""

    total_bytes: int
    available_bytes: int
    wired_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that holds a folder."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process now. `cpu_s` is user + system since it started."""

    pid: int
    cpu_s: float
    resident_bytes: int
    threads: int
    started_at_s: float


def memory() -> MemoryUse:
    """Total and available memory: MemAvailable on Linux; on macOS total - wired - anonymous -
    compressor, for what macOS calls free leaves out the file cache."""
    seen = psutil.virtual_memory()
    if sys.platform == "darwin":
        pages = _vm_stat()
        found = macos_available(seen.total, pages)
        if found is not None:
            return found
    return MemoryUse(seen.total, seen.available)


def macos_available(total_bytes: int, counts: Mapping[str, int]) -> MemoryUse | None:
    """Memory from `vm_stat`'s counts in bytes, or None when it did not say all of them."""
    names = ("Pages wired down", "Anonymous pages", "Pages occupied by compressor")
    wired, anonymous, compressor = (counts.get(name) for name in names)
    if wired is None or anonymous is None or compressor is None:
        return None
    return MemoryUse(total_bytes, max(0, total_bytes - wired - anonymous - compressor), wired)


def vm_stat_counts(text: str) -> dict[str, int]:
    """`vm_stat`'s lines as bytes by name; the page size is in its first line."""
    size = re.search(r"page size of (\d+) bytes", text)
    page_bytes = int(size.group(1)) if size else 4096
    found = re.findall(r'^"?([A-Za-z][^:"]*)"?:\s+(\d+)\.?$', text, flags=re.MULTILINE)
    return {name: int(count) * page_bytes for name, count in found}


def _vm_stat() -> dict[str, int]:
    try:
        done = subprocess.run(
            ["/usr/bin/vm_stat"],
            capture_output=True,
            text=True,
            timeout=VM_STAT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return vm_stat_counts(done.stdout)


def thunderbolt() -> ThunderboltReading | None:
    """The Thunderbolt ports of a Mac, None elsewhere and where its tools do not tell. Takes a
    second or more."""
    if sys.platform != "darwin":
        return None
    profiler = ("/usr/sbin/system_profiler", "SPThunderboltDataType", "-json")
    profile = _said(*profiler)
    order = _said("/usr/sbin/networksetup", "-listnetworkserviceorder")
    return reading_of(profile, order) if profile and order else None


def _said(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROFILER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def cores() -> int:
    """Logical processors."""
    return psutil.cpu_count() or 1


def cpu_busy_s() -> float:
    """Processor seconds that were not idle since the machine started, over all cores."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Linux counts guests within user time, so a plain sum would count them twice.
    twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - idle - twice


def load_1m() -> float:
    """Runnable processes, averaged over a minute."""
    return os.getloadavg()[0]


def disk(folder: Path) -> Disk:
    """Of the file system of `folder`, or of its nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = psutil.disk_usage(str(folder))
    return Disk(usage.total, usage.free)


def process(pid: int) -> ProcessSample | None:
    """What a process uses, or None when there is none (or it is a zombie)."""
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
    """Whether there is a process of this pid."""
    return psutil.pid_exists(pid)


def children(pid: int) -> list[int]:
    """The pids of a process's own children, oldest first; none when it is gone."""
    try:
        found = psutil.Process(pid).children()
        return [child.pid for child in sorted(found, key=_born)]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def _born(child: psutil.Process) -> tuple[float, int]:
    return (child.create_time(), child.pid)
