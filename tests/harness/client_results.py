"""What came of the clients' calls: a row a client, kept for `make prove-table` and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.harness import kept_rows
from tests.harness.nodes import ROOT

RESULTS = ROOT / "prove-results" / "clients.jsonl"
HEADS = ("client", "version", "calls", "passed", "failed, and why", "seconds")


def by_client(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each client, in the order in which they came: its version, how many calls it
    made and how many passed, {call: reason} of those that failed, and the seconds of all."""
    rows: dict[str, dict[str, Any]] = {}
    for call in calls:
        fresh = {"version": call["version"], "calls": 0, "passed": 0, "failed": {}, "seconds": 0.0}
        row = rows.setdefault(call["client"], {"client": call["client"], **fresh})
        row["calls"] += 1
        row["passed"] += call["ok"]
        row["seconds"] = round(row["seconds"] + call["seconds"], 2)
        if not call["ok"]:
            row["failed"][call["call"]] = call["why"]
    return list(rows.values())


def keep(rows: Sequence[dict[str, Any]], path: Path = RESULTS) -> None:
    """Append rows to the results; a client's later row stands for its earlier ones."""
    kept_rows.keep(path, rows)


def latest(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the last row of each client that was kept; none where there is no file."""
    return kept_rows.latest(path, "client")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row as words, in the order of `HEADS`."""
    failed = "; ".join(f"{call}: {why[:200]}" for call, why in row["failed"].items())
    numbers = (str(row["calls"]), str(row["passed"]))
    return (row["client"], row["version"], *numbers, failed, f"{row['seconds']:.0f}")
