"""Is a node well? One word, a code, what to do, and all reasons, from its latest reading.

Pure. What a node finds about itself (disk, memory, processes, models) comes in its reading, worst
first; here silence is added, which no node can tell of itself, and what this process knows of the
records of its own node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict

from bus.wire.messages.readings import NodeReading

UNREACHABLE_S = 15.0
GRAVE = frozenset({"disk_full", "journal_damaged", "means_gone", "state_damaged", "thread_ended"})
"""Findings that `/health` tells as well: something of the node itself is broken or lost, or will
be: a journal on a full disk is not written."""

RECORDS_REMEDY = "see `shoal doctor` (disk, folders, records) and `shoal logs gateway`"


Level = Literal["ok", "warn", "error"]


class HealthReason(TypedDict):
    """Why a node is not well, and what to do."""

    status: Level
    code: str
    message: str
    remediation: str


class NodeHealth(HealthReason):
    """The worst reason, and all of them, worst first."""

    reasons: list[HealthReason]


def node_health(
    reading: NodeReading | None, age_s: float, of_records: Sequence[str] = ()
) -> NodeHealth:
    """Return the worst reason, `{status, code, message, remediation}`, and `reasons`, all of them,
    worst first; status is ok, warn or error."""
    reasons = _reasons(reading, age_s, of_records)
    return {**(reasons[0] if reasons else _said("ok", "ok", "", "")), "reasons": reasons}


def grave_problems(reading: NodeReading | None) -> list[str]:
    """Return what `/health` is to tell of a node's own findings, each with what to do."""
    found = () if reading is None else reading.findings
    return [f"{one.message}: {one.remediation}" for one in found if one.code in GRAVE]


def _reasons(
    reading: NodeReading | None, age_s: float, of_records: Sequence[str]
) -> list[HealthReason]:
    if reading is None or age_s >= UNREACHABLE_S:
        since = "no reading yet" if reading is None else f"no reading for {age_s:.0f} s"
        way_out = "see `shoal status` on that node (telemetry, bus)"
        return [_said("warn", "unreachable", since, way_out)]
    found = [
        _said(finding.level, finding.code, finding.message, finding.remediation)
        for finding in reading.findings
        if finding.node == reading.node
    ]
    found += [_said("warn", "records", problem, RECORDS_REMEDY) for problem in of_records]
    return sorted(found, key=lambda one: one["status"] != "error")


def _said(status: Level, code: str, message: str, remediation: str) -> HealthReason:
    return {"status": status, "code": code, "message": message, "remediation": remediation}
