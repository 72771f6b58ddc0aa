"""Finds the ranks that block the other ranks of their instance, and gives the reason for each.

Pure. Most reasons need no common clock: how long a runner has sent nothing to its worker, the state
of its process, and whether an ended runner shut down cleanly. To find a hung engine in a live
process, the flight recorders (logs of the last steps) of all ranks are compared in one clock. An
engine is hung if it does its own work and no rank of its group makes progress. Meanwhile, other
engines of the group wait for a device, for other ranks, or for a plan of the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SILENT_S = 2.5
"""A runner that has been silent for longer than this blocks its group. Runners send a message each
second."""
SILENT_LOADING_S = 15.0
"""A runner that starts or loads blocks its group only if it has been silent for longer than this,
because loading can block the Python interpreter for long."""
HANGS_S = 2.5
"""An engine without progress for longer than this is hung. Ranks check their engines four times a
second."""
LOADS = ("idle", "loading", "warming")
LEFT = "shutdown_cleanup"
STEPS = "steps"
OWN_WORK = "host"
"""The state of an engine that does its own work and waits for nothing."""
OF_RANKS = (
    "instance",
    "model",
    "generation",
    "rank",
    "node",
    "name",
    "process",
    "pid",
    "ended_at_s",
)
"""The fields that describe a blocking rank in the answer."""
Row = Mapping[str, Any]
"""A JSON object: a runner in the answer of its node, or an entry of a flight recorder."""


@dataclass(frozen=True, slots=True)
class NodeRunners:
    """The runners of a node. If the node was not reached, `why` is an error code and `message` a
    text."""

    node: str
    name: str
    runners: Sequence[Row] = ()
    why: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class InstanceRank:
    """A rank of an instance, from the cluster's state."""

    instance: str
    model: str
    generation: int
    rank: int
    node: str

    def fields(self) -> dict[str, Any]:
        """Return the rank's fields in the answer, without its node."""
        return {
            "instance": self.instance,
            "model": self.model,
            "generation": self.generation,
            "rank": self.rank,
        }


def behind(
    runners: Sequence[Row],
    placed: Sequence[InstanceRank],
    away: Mapping[str, NodeRunners],
    now_s: float,
) -> list[dict[str, Any]]:
    """Return the ranks that block or blocked their groups, each with a reason. Instants of
    `runners` are in the clock of `now_s`. Instances with only one rank are left out."""
    rows: list[dict[str, Any]] = []
    of_groups = {rank.instance for rank in placed if rank.rank} | {
        runner["instance"] for runner in runners if runner["rank"]
    }
    for rank in placed:
        if rank.instance in of_groups and rank.node in away:
            node = away[rank.node]
            why = f"the node cannot be reached ({node.why})"
            where = {"node": rank.node, "name": node.name, "ended_at_s": None}
            rows.append({**rank.fields(), **where, "why": why})
    in_groups = [runner for runner in runners if runner["instance"] in of_groups]
    rows += [_named(runner, why) for runner in in_groups if (why := _why(runner))]
    explained = {_group(row) for row in rows}
    groups: dict[Any, list[Row]] = {}
    for runner in in_groups:
        groups.setdefault(_group(runner), []).append(runner)
    for group, ranks in groups.items():
        if group not in explained:
            rows += [_named(runner, why) for runner, why in _hung(ranks, now_s)]
    return rows


def _group(row: Row) -> tuple[Any, Any]:
    return row["instance"], row["generation"]


def _named(runner: Row, why: str) -> dict[str, Any]:
    return {**{name: runner[name] for name in OF_RANKS}, "why": why}


def _why(runner: Row) -> str:
    """Return the reason why a rank blocks its group, as far as this rank alone shows it; "" if the
    rank does not block its group."""
    silent_s = float(runner["silent_s"])
    if runner["ended_at_s"] is not None:
        if any(entry["phase"] == LEFT for entry in runner["recorder"]):
            return ""
        silent = f", {silent_s:.0f} s after its last message" if silent_s >= SILENT_S else ""
        return f"the process died{silent}"
    if runner["halted"]:
        return "the process is stopped (SIGSTOP, or a debugger)"
    limit_s = SILENT_LOADING_S if runner["phase"] in LOADS else SILENT_S
    return f"the process has sent nothing for {silent_s:.1f} s" if silent_s >= limit_s else ""


def _hung(ranks: Sequence[Row], now_s: float) -> list[tuple[Row, str]]:
    """Return the ranks of one generation whose engines hang, each with a reason.

    An engine hangs if it does its own work, no rank of the group advances, and at least one other
    engine waits.
    """
    marks = [_mark(rank) for rank in ranks]
    steps = [mark for mark in marks if mark is not None and mark["error_s"] is not None]
    if len(steps) < len(ranks) or any(rank["phase"] in LOADS for rank in ranks):
        return []
    last_s = max(mark["at_s"] + mark["error_s"] for mark in steps)
    until_s = min(now_s if rank["ended_at_s"] is None else rank["ended_at_s"] for rank in ranks)
    stood_s = until_s - last_s
    hung = [pair for pair in zip(ranks, steps, strict=True) if pair[1]["engine"] == OWN_WORK]
    if stood_s < HANGS_S or len(hung) == len(ranks):
        return []
    return [(rank, _hangs(mark, stood_s)) for rank, mark in hung]


def _hangs(mark: Row, stood_s: float) -> str:
    where = f"in step {mark['begun']}" if mark["begun"] > mark["step"] else "between steps"
    return f"the engine hangs {where}: it is not waiting, and no rank advanced for {stood_s:.1f} s"


def _mark(runner: Row) -> Row | None:
    """Return the latest entry about a rank's engine in its flight recorder; None if no entry exists
    yet."""
    entries = reversed(runner["recorder"])
    return next((entry for entry in entries if entry["phase"] == STEPS and "engine" in entry), None)
