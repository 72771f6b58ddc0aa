"""The health of a node: one status, a code, a remedy and all reasons, from the node's latest
reading.

Pure. A node reports its own findings (disk, memory, processes, models) in its reading, worst first.
This module adds two findings: that a node is silent, and that the records of this process's own
node have problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict

from bus.wire.messages.readings import NodeReading

UNREACHABLE_S = 15.0
GRAVE = frozenset({"disk_full", "journal_damaged", "means_gone", "state_damaged", "thread_ended"})
"""Findings that `/health` reports too. They mean that a part of the node itself is broken or lost,
or soon will be. On a full disk, for example, the journal cannot be written."""

RECORDS_REMEDY = "see `shoal doctor` (disk, folders, records) and `shoal logs gateway`"


Level = Literal["ok", "warn", "error"]


class HealthReason(TypedDict):
    """Why a node is unhealthy, and what to do."""

    status: Level
    code: str
    message: str
    remediation: str


class NodeHealth(HealthReason):
    """The health of a node: the worst reason, and all reasons in order, worst first."""

    reasons: list[HealthReason]


def node_health(
    reading: NodeReading | None, age_s: float, of_records: Sequence[str] = ()
) -> NodeHealth:
    """Return the health of a node: the worst reason, and all reasons in `reasons`, worst first. A
    healthy node has status `ok` and no reasons. `age_s`: the age of the reading. `of_records`:
    problems of the node's records."""
    reasons = _reasons(reading, age_s, of_records)
    return {**(reasons[0] if reasons else _reason("ok", "ok", "", "")), "reasons": reasons}


def grave_problems(reading: NodeReading | None) -> list[str]:
    """Return the node's own findings that `/health` reports, each with its remedy."""
    findings = () if reading is None else reading.findings
    return [
        f"{finding.message}: {finding.remediation}" for finding in findings if finding.code in GRAVE
    ]


def _reasons(
    reading: NodeReading | None, age_s: float, of_records: Sequence[str]
) -> list[HealthReason]:
    if reading is None or age_s >= UNREACHABLE_S:
        since = "no reading yet" if reading is None else f"no reading for {age_s:.0f} s"
        way_out = "see `shoal status` on that node (telemetry, bus)"
        return [_reason("warn", "unreachable", since, way_out)]
    reasons = [
        _reason(finding.level, finding.code, finding.message, finding.remediation)
        for finding in reading.findings
        if finding.node == reading.node
    ]
    reasons += [_reason("warn", "records", problem, RECORDS_REMEDY) for problem in of_records]
    return sorted(reasons, key=lambda reason: reason["status"] != "error")


def _reason(status: Level, code: str, message: str, remediation: str) -> HealthReason:
    return {"status": status, "code": code, "message": message, "remediation": remediation}
