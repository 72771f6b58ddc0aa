"""The flight recorders of all nodes' runners merged by time, by the clock of the node asked.

Pure. Entries of two nodes that are closer to each other than their errors may stand in the wrong
order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from gateway.http.diagnostics.behind import CopyRank, NodeRunners, Told, behind
from gateway.http.diagnostics.clocks import Clocks


def timeline(
    nodes: Sequence[NodeRunners],
    placed: Sequence[CopyRank],
    *,
    wanted: Callable[[str, str], bool],
    most: int,
    clocks: Clocks,
    now_s: float,
) -> dict[str, Any]:
    """Return the runners that are `wanted` (by instance and model), those that run first; at most
    `most` entries of each, merged; the ranks that stand behind at `now_s`; nodes that were not
    reached, with the ranks that are there; and how far the others' clocks are."""
    models = {one.instance: one.model for one in placed}
    there = [node for node in nodes if not node.why]
    runners = [_named(node, runner, models, clocks) for node in there for runner in node.runners]
    runners = [
        runner for runner in runners if wanted(runner["instance"] or "", runner["model"] or "")
    ]
    runners.sort(key=_place)
    ranks = [one for one in placed if wanted(one.instance, one.model)]
    away = {one.node: one for one in nodes if one.why}
    lines = [line for runner in runners for line in _lines(runner, most)]
    return {
        "runners": [_without_entries(runner, most) for runner in runners],
        "behind": behind(runners, ranks, away, now_s),
        "unreached": [
            {
                "node": one.node,
                "name": one.name,
                "why": one.why,
                "message": one.message,
                "ranks": [rank.told() for rank in ranks if rank.node == one.node],
            }
            for one in away.values()
        ],
        "clocks": [
            {"node": node.node, "name": node.name, **clocks.told(node.node, now_s)}
            for node in there
        ],
        "timeline": sorted(lines, key=lambda line: (line["at_s"], line["node"], line["process"])),
    }


def _named(
    node: NodeRunners, one: Told, models: Mapping[str, str], clocks: Clocks
) -> dict[str, Any]:
    model = one.get("model") or models.get(str(one.get("instance"))) or _loaded(one)
    ended_at_s = one["ended_at_s"]
    return {
        "node": node.node,
        "name": node.name,
        **one,
        "model": model,
        "ended_at_s": None if ended_at_s is None else clocks.here(node.node, ended_at_s)[0],
        "recorder": [clocks.entry(node.node, entry) for entry in one["recorder"]],
    }


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
