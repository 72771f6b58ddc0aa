"""Is a node well? One word, a code, and what to do, from its latest reading.

Pure. What a node finds about itself (disk, memory, processes, models) comes in its reading, worst
first; here silence is added, which no node can tell of itself, and what this process knows of the
records of its own node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bus.wire.messages.readings import NodeReading

UNREACHABLE_S = 15.0


RECORDS_REMEDY = "see `shoal doctor` (disk, folders, records) and `shoal logs gateway`"


def node_health(
    reading: NodeReading | None, age_s: float, of_records: Sequence[str] = ()
) -> dict[str, Any]:
    """Return `{status, code, message, remediation}`; status is ok, warn or error."""
    if reading is None or age_s >= UNREACHABLE_S:
        since = "no reading yet" if reading is None else f"no reading for {age_s:.0f} s"
        way_out = "see `shoal status` on that node (telemetry, bus)"
        return _said("warn", "unreachable", since, way_out)
    for finding in reading.findings:
        if finding.node == reading.node:
            return _said(finding.level, finding.code, finding.message, finding.remediation)
    if of_records:
        return _said("warn", "records", "; ".join(of_records), RECORDS_REMEDY)
    return _said("ok", "ok", "", "")


def _said(status: str, code: str, message: str, remediation: str) -> dict[str, Any]:
    return {"status": status, "code": code, "message": message, "remediation": remediation}
