"""How a node is said to be: silence, what it found itself, what is known of its records."""

from __future__ import annotations

from bus.wire.ids import NodeId
from bus.wire.messages.readings import HealthFinding, NodeReading
from gateway.view.watch.node_health import UNREACHABLE_S, grave_problems, node_health


def reading(*findings: HealthFinding) -> NodeReading:
    return NodeReading(
        node=NodeId("n1"),
        cpu_ratio=0.0,
        load_1m=0.0,
        measured_at_s=0.0,
        memory_total_bytes=1,
        memory_available_bytes=1,
        disk_total_bytes=1,
        disk_free_bytes=1,
        findings=findings,
    )


LOW = HealthFinding(
    node=NodeId("n1"), level="error", code="disk_full", message="no room", remediation="make some"
)
RECORDS = ["cannot write records"]


def test_records_in_trouble_are_a_warning_behind_what_the_node_found_itself() -> None:
    assert node_health(reading(), 1.0)["status"] == "ok"
    said = node_health(reading(), 1.0, RECORDS)
    assert (said["status"], said["code"], said["message"]) == ("warn", "records", RECORDS[0])
    assert "shoal doctor" in said["remediation"]
    assert node_health(reading(LOW), 1.0, RECORDS)["code"] == "disk_full"
    assert node_health(reading(), UNREACHABLE_S, RECORDS)["code"] == "unreachable"
    assert node_health(None, 0.0)["code"] == "unreachable"


def test_all_reasons_are_told_the_worst_first() -> None:
    warm = LOW.model_copy(update={"level": "warn", "code": "memory_low"})
    said = node_health(reading(warm, LOW), 1.0, [*RECORDS, "full"])
    assert [one["code"] for one in said["reasons"]] == [
        "disk_full", "memory_low", "records", "records"
    ]  # fmt: skip
    assert {key: said[key] for key in said if key != "reasons"} == said["reasons"][0]
    assert node_health(reading(), 1.0)["reasons"] == []


def test_health_tells_damage_full_disks_and_ended_threads_and_leaves_the_rest_to_the_state() -> (
    None
):
    ended = LOW.model_copy(update={"code": "thread_ended", "message": "records ended"})
    lower = LOW.model_copy(update={"code": "disk_low", "message": "not much room"})
    assert grave_problems(reading(LOW, lower, ended)) == [
        "no room: make some",
        "records ended: make some",
    ]
    assert grave_problems(None) == []
