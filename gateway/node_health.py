"""Is a node well? One word, a code, and what to do, from its latest reading.

Pure. Errors: disk full (under 2 GB free). Warnings: disk low (under 10 GB), unreachable (no reading
for 15 s). The worst one found is told.
"""

from __future__ import annotations

from typing import Any

from bus.messages.readings import NodeReading

DISK_FULL_BYTES = 2 * 10**9
DISK_LOW_BYTES = 10 * 10**9
UNREACHABLE_S = 15.0


def node_health(reading: NodeReading | None, age_s: float) -> dict[str, Any]:
    """`{status, code, message, remediation}`; status is ok, warn or error."""
    if reading is not None and reading.disk_free_bytes < DISK_FULL_BYTES:
        return _said(
            "error",
            "disk_full",
            f"only {reading.disk_free_bytes / 1e9:.1f} GB are free",
            "remove models with `shoal rm`, or make room on the disk",
        )
    if reading is None or age_s >= UNREACHABLE_S:
        since = "no reading yet" if reading is None else f"no reading for {age_s:.0f} s"
        return _said(
            "warn", "unreachable", since, "see `shoal status` on that node (telemetry, bus)"
        )
    if reading.disk_free_bytes < DISK_LOW_BYTES:
        return _said(
            "warn",
            "disk_low",
            f"{reading.disk_free_bytes / 1e9:.1f} GB are free",
            "models that are pulled next may not fit",
        )
    return _said("ok", "ok", "", "")


def _said(status: str, code: str, message: str, remediation: str) -> dict[str, Any]:
    return {"status": status, "code": code, "message": message, "remediation": remediation}
