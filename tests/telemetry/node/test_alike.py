"""A reading of a node counts as new if anything in it changed that a user would see."""

from __future__ import annotations

from typing import Any

import pytest

from bus.wire.ids import NodeId
from bus.wire.messages.readings import HealthFinding, NodeReading, ProcessReading
from telemetry.node.alike import are_alike

GIB = 1 << 30
PROCESS = ProcessReading(
    name="bus", pid=7, status="running", cpu_s=1.0, cpu_ratio=0.01,
    resident_bytes=GIB, threads=4, uptime_s=9.0,
)  # fmt: skip
READING = NodeReading(
    node=NodeId("n1"), memory_total_bytes=16 * GIB, memory_available_bytes=8 * GIB, cpu_ratio=0.02,
    load_1m=0.1, disk_total_bytes=100 * GIB, disk_free_bytes=50 * GIB, processes=(PROCESS,),
    measured_at_s=100.0, wired_bytes=GIB,
)  # fmt: skip
FINDING = HealthFinding(
    node=NodeId("n1"), level="warn", code="disk_low", message="low", remediation="delete"
)


def process(**changes: Any) -> dict[str, Any]:
    return {"processes": (PROCESS.model_copy(update=changes),)}


@pytest.mark.parametrize(
    "changes",
    [
        {"measured_at_s": 101.0},
        {"cpu_ratio": 0.06, "load_1m": 0.9},
        {"memory_available_bytes": 8 * GIB - (1 << 20), "wired_bytes": GIB + (1 << 20)},
        process(cpu_s=1.1, uptime_s=10.0, cpu_ratio=0.05, resident_bytes=GIB + (1 << 20)),
    ],
)
def test_time_and_small_changes_leave_a_reading_as_it_was(changes: dict[str, Any]) -> None:
    assert are_alike(READING, READING.model_copy(update=changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu_ratio": 0.08},
        {"load_1m": 1.2},
        {"memory_available_bytes": 7 * GIB},
        {"memory_total_bytes": 17 * GIB},
        {"disk_free_bytes": 49 * GIB},
        {"wired_bytes": 2 * GIB},
        {"findings": (FINDING,)},
        {"processes": ()},
        {"processes": (PROCESS, PROCESS)},
        process(pid=8),
        process(status="exited"),
        process(cpu_ratio=1.0),
        process(resident_bytes=GIB + (16 << 20)),
    ],
)
def test_what_a_user_would_see_makes_a_reading_new(changes: dict[str, Any]) -> None:
    changed = READING.model_copy(update=changes)
    assert not are_alike(READING, changed) and not are_alike(changed, READING)
