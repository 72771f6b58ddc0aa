"""Which ranks of a group the others wait for, or waited for, and why.

Pure. Most is judged without comparing clocks: by how long each node's worker has heard nothing of a
runner, by what the system says of its process, and by whether one that has ended had left of
itself. That a rank's engine hangs while its process speaks follows from the flight recorders of all
ranks, by one clock: nothing was done in the group for a while, and one engine is at its own work
while others wait for a device, for other ranks, or for a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SILENT_S = 2.5
"""A runner speaks each second."""
SILENT_LOADING_S = 15.0
"""While it starts or loads, the interpreter may be held for longer."""
HANGS_S = 2.5
"""Ranks look at their engines four times a second."""
LOADS = ("idle", "loading", "warming")
LEFT = "shutdown_cleanup"
STEPS = "steps"
OWN_WORK = "host"
"""What an engine is at that waits for nothing."""
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
"""What is told of a rank that stands behind."""
Told = Mapping[str, Any]
"""A runner as its node tells of it, or an entry of its recorder."""


@dataclass(frozen=True, slots=True)
class NodeRunners:
    """What a node told of its runners; or `why` it was not reached, and in which words."""

    node: str
    name: str
    runners: Sequence[Told] = ()
    why: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class CopyRank:
    """A rank of a copy, as the cluster's state has it."""

    instance: str
    model: str
    generation: int
    rank: int
    node: str

    def told(self) -> dict[str, Any]:
        """Return what is told of it, without its node."""
        return {
            "instance": self.instance,
            "model": self.model,
            "generation": self.generation,
            "rank": self.rank,
        }


def behind(
    runners: Sequence[Told],
    placed: Sequence[CopyRank],
    away: Mapping[str, NodeRunners],
    now_s: float,
) -> list[dict[str, Any]]:
    """Return the ranks of groups that the others wait for, or waited for, each with why. Instants
    of `runners` are by the clock that says `now_s`."""
    found: list[dict[str, Any]] = []
    of_groups = {one.instance for one in placed if one.rank} | {
        runner["instance"] for runner in runners if runner["rank"]
    }
    for rank in placed:
        if rank.instance in of_groups and rank.node in away:
            node = away[rank.node]
            why = f"its node cannot be reached ({node.why})"
            where = {"node": rank.node, "name": node.name, "ended_at_s": None}
            found.append({**rank.told(), **where, "why": why})
    in_groups = [runner for runner in runners if runner["instance"] in of_groups]
    found += [_named(runner, why) for runner in in_groups if (why := _why(runner))]
    explained = {_group(one) for one in found}
    groups: dict[Any, list[Told]] = {}
    for runner in in_groups:
        groups.setdefault(_group(runner), []).append(runner)
    for group, ranks in groups.items():
        if group not in explained:
            found += [_named(one, why) for one, why in _hung(ranks, now_s)]
    return found


def _group(one: Told) -> tuple[Any, Any]:
    return one["instance"], one["generation"]


def _named(one: Told, why: str) -> dict[str, Any]:
    return {**{name: one[name] for name in OF_RANKS}, "why": why}


def _why(one: Told) -> str:
    """Return why the others wait for a rank, as far as one rank tells; empty where they need
    not."""
    silent_s = float(one["silent_s"])
    if one["ended_at_s"] is not None:
        if any(entry["phase"] == LEFT for entry in one["recorder"]):
            return ""
        silent = f", {silent_s:.0f} s after its last message" if silent_s >= SILENT_S else ""
        return f"it died{silent}"
    if one["halted"]:
        return "it is stopped (SIGSTOP, or a debugger)"
    limit_s = SILENT_LOADING_S if one["phase"] in LOADS else SILENT_S
    return f"it has sent nothing for {silent_s:.1f} s" if silent_s >= limit_s else ""


def _hung(ranks: Sequence[Told], now_s: float) -> list[tuple[Told, str]]:
    """Return the ranks of one generation whose engines hang, each with why: those at their own work
    while nothing is done in the group, and at least one other waits."""
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
    return [(one, _hangs(mark, stood_s)) for one, mark in hung]


def _hangs(mark: Told, stood_s: float) -> str:
    where = f"in step {mark['begun']}" if mark["begun"] > mark["step"] else "between steps"
    return f"its engine hangs {where}: it is not waiting, and no rank advanced for {stood_s:.1f} s"


def _mark(one: Told) -> Told | None:
    """Return the last entry about the engine of a rank of a group; None before there was one."""
    entries = reversed(one["recorder"])
    return next((entry for entry in entries if entry["phase"] == STEPS and "engine" in entry), None)
