"""Whether a reading of a node shows what the one before showed. While it does, telemetry measures
less often, because that costs an idle node most of its processor time.

Pure.
"""

from __future__ import annotations

from bus.wire.messages.readings import NodeReading, ProcessReading

RATIO = 0.05
"""Smaller changes of a processor load, in cores, count as none."""
MEMORY_RATIO = 0.005
"""Smaller changes of memory or disk, relative to the total, count as none."""
RESIDENT_BYTES = 8 << 20
"""A smaller change of one process's memory counts as none."""


def are_alike(before: NodeReading, after: NodeReading) -> bool:
    """Return whether both readings of one node show the same state, apart from small changes of
    loads, memory and disk. `uptime_s`, `cpu_s` and the time of the measurement do not count."""
    exact = {"findings", "thunderbolt", "memory_total_bytes", "disk_total_bytes"}
    memory_bytes = MEMORY_RATIO * after.memory_total_bytes
    disk_bytes = MEMORY_RATIO * after.disk_total_bytes
    return (
        all(getattr(before, name) == getattr(after, name) for name in exact)
        and len(before.processes) == len(after.processes)
        and all(map(_is_like, before.processes, after.processes))
        and abs(before.cpu_ratio - after.cpu_ratio) < RATIO
        and abs(before.load_1m - after.load_1m) < 1.0
        and abs(before.memory_available_bytes - after.memory_available_bytes) < memory_bytes
        and abs((before.wired_bytes or 0) - (after.wired_bytes or 0)) < memory_bytes
        and abs(before.disk_free_bytes - after.disk_free_bytes) < disk_bytes
    )


def _is_like(before: ProcessReading, after: ProcessReading) -> bool:
    exact = ("name", "pid", "status", "threads", "description")
    return (
        all(getattr(before, name) == getattr(after, name) for name in exact)
        and abs(before.cpu_ratio - after.cpu_ratio) < RATIO
        and abs(before.resident_bytes - after.resident_bytes) < RESIDENT_BYTES
    )
