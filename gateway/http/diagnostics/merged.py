"""The flight recorders of all nodes' runners merged by time, and which rank of a group the others
wait for.

Pure. Entries are in the order of each node's own clock. Who stands behind is judged without
comparing clocks: by how long each node's worker has heard nothing of a runner, by what the system
says of its process, and by whether one that has ended had left of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

SILENT_S = 2.5
"""A runner speaks each second."""
SILENT_LOADING_S = 15.0
"""While it starts or loads, the interpreter may be held for longer."""
LOADS = ("idle", "loading", "warming")
LEFT = "shutdown_cleanup"
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


def timeline(
    nodes: Sequence[NodeRunners],
    placed: Sequence[CopyRank],
    *,
    wanted: Callable[[str, str], bool],
    most: int,
) -> dict[str, Any]:
    """Return the runners that are `wanted` (by instance and model), those that run first; at most
    `most` entries of each, merged; the ranks that stand behind; and nodes that were not reached,
    with the ranks that are there."""
    models = {one.instance: one.model for one in placed}
    runners = [_named(node, one, models) for node in nodes for one in node.runners if not node.why]
    runners = [one for one in runners if wanted(one["instance"] or "", one["model"] or "")]
    runners.sort(key=_place)
    ranks = [one for one in placed if wanted(one.instance, one.model)]
    away = {one.node: one for one in nodes if one.why}
    lines = [line for one in runners for line in _lines(one, most)]
    return {
        "runners": [_without_entries(one, most) for one in runners],
        "behind": _behind(runners, ranks, away),
        "unreached": [
            {
                "node": one.node,
                "name": one.name,
                "why": one.why,
                "message": one.message,
                "ranks": [_rank(rank) for rank in ranks if rank.node == one.node],
            }
            for one in away.values()
        ],
        "timeline": sorted(lines, key=lambda line: (line["at_s"], line["node"], line["process"])),
    }


def _named(node: NodeRunners, one: Told, models: Mapping[str, str]) -> dict[str, Any]:
    model = one.get("model") or models.get(str(one.get("instance"))) or _loaded(one)
    return {"node": node.node, "name": node.name, **one, "model": model}


def _loaded(one: Told) -> str | None:
    """Return the model that a runner's recorder says it loaded."""
    return next((entry["model"] for entry in one["recorder"] if "model" in entry), None)


def _place(one: Told) -> tuple[Any, ...]:
    """Return where a runner stands among the others: running ones first, then the last to end."""
    ended_at_s = one["ended_at_s"]
    over = ended_at_s is not None
    return over, -(ended_at_s or 0.0), one["model"] or "", one["instance"] or "", one["rank"]


def _lines(one: Told, most: int) -> list[dict[str, Any]]:
    whose = ("node", "name", "process", "pid", "instance", "generation", "rank")
    head = {name: one[name] for name in whose}
    return [{**head, **entry} for entry in one["recorder"][-most:]]


def _without_entries(one: dict[str, Any], most: int) -> dict[str, Any]:
    entries = cast(Sequence[Told], one["recorder"])
    rest = {name: value for name, value in one.items() if name != "recorder"}
    return {**rest, "last": entries[-1] if entries else None, "entries": min(len(entries), most)}


def _behind(
    runners: Sequence[Told], placed: Sequence[CopyRank], away: Mapping[str, NodeRunners]
) -> list[dict[str, Any]]:
    """Return the ranks of groups that the others wait for, or waited for, each with why."""
    found: list[dict[str, Any]] = []
    of_groups = {one.instance for one in placed if one.rank} | {
        one["instance"] for one in runners if one["rank"]
    }
    for rank in placed:
        if rank.instance in of_groups and rank.node in away:
            node = away[rank.node]
            why = f"its node was not reached ({node.why})"
            where = {"node": rank.node, "name": node.name, "ended_at_s": None}
            found.append({**_rank(rank), **where, "why": why})
    for one in runners:
        why = _why(one)
        if why and one["instance"] in of_groups:
            found.append({**{name: one[name] for name in OF_RANKS}, "why": why})
    return found


def _why(one: Told) -> str:
    """Return why the others wait for a rank; empty where they need not."""
    silent_s = float(one["silent_s"])
    if one["ended_at_s"] is not None:
        if any(entry["phase"] == LEFT for entry in one["recorder"]):
            return ""
        silent = f", {silent_s:.0f} s after its last word" if silent_s >= SILENT_S else ""
        return f"it ended without leaving{silent}"
    if one["halted"]:
        return "the system has halted it (SIGSTOP, a debugger)"
    limit_s = SILENT_LOADING_S if one["phase"] in LOADS else SILENT_S
    return f"it has said nothing for {silent_s:.1f} s" if silent_s >= limit_s else ""


def _rank(rank: CopyRank) -> dict[str, Any]:
    return {
        "instance": rank.instance,
        "model": rank.model,
        "generation": rank.generation,
        "rank": rank.rank,
    }
