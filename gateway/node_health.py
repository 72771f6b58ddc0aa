"""Is a node well? One word, a code, and what to do, from what telemetry found.

Pure. The worst finding about a node is told, whoever made it; a node that was not heard of for
15 s is unreachable, whatever it said before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bus.messages.readings import HealthFinding, NodeReading

UNREACHABLE_S = 15.0
_RANK = {"error": 0, "warn": 1}


def node_health(node: str, age_s: float | None, readings: Iterable[NodeReading]) -> dict[str, Any]:
    """`{status, code, message, remediation}`; status is ok, warn or error.

    `age_s` is that of the node's own last reading, None when it never sent one.
    """
    if age_s is None or age_s >= UNREACHABLE_S:
        since = "no reading yet" if age_s is None else f"no reading for {age_s:.0f} s"
        return _said("warn", "unreachable", since, "see `shoal status` there (telemetry, bus)")
    told = [one for reading in readings for one in reading.findings if one.node == node]
    worst: HealthFinding | None = min(told, key=lambda one: _RANK[one.level], default=None)
    if worst is None:
        return _said("ok", "ok", "", "")
    return _said(worst.level, worst.code, worst.message, worst.remediation)


def _said(status: str, code: str, message: str, remediation: str) -> dict[str, Any]:
    return {"status": status, "code": code, "message": message, "remediation": remediation}
