"""Merges the flight recorders of all nodes' runners by time, in the clock of the answering node. A
flight recorder is the log of a runner's last steps.

Pure. Entries of different nodes may be in the wrong order if they are closer than the error of the
clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from gateway.http.diagnostics.behind import InstanceRank, NodeRunners, Row, behind
from gateway.http.diagnostics.clocks import Clocks


def timeline(
    nodes: Sequence[NodeRunners],
    placed: Sequence[InstanceRank],
    *,
    wanted: Callable[[str, str], bool],
    most: int,
    clocks: Clocks,
    now_s: float,
) -> dict[str, Any]:
    """Return the timeline of the runners for which `wanted(instance, model)` is true.

    It has the runners (running ones first) and at most `most` entries of each, merged. It also has
    the ranks that block their groups at `now_s`, unreached nodes with their ranks, and clock
    offsets.
    """
    models = {rank.instance: rank.model for rank in placed}
    there = [node for node in nodes if not node.why]
    runners = [_named(node, runner, models, clocks) for node in there for runner in node.runners]
    runners = [
        runner for runner in runners if wanted(runner["instance"] or "", runner["model"] or "")
    ]
    runners.sort(key=_place)
    ranks = [rank for rank in placed if wanted(rank.instance, rank.model)]
    away = {node.node: node for node in nodes if node.why}
    lines = [line for runner in runners for line in _lines(runner, most)]
    return {
        "runners": [_without_entries(runner, most) for runner in runners],
        "behind": behind(runners, ranks, away, now_s),
        "unreached": [
            {
                "node": node.node,
                "name": node.name,
                "why": node.why,
                "message": node.message,
                "ranks": [rank.fields() for rank in ranks if rank.node == node.node],
            }
            for node in away.values()
        ],
        "clocks": [
            {"node": node.node, "name": node.name, **clocks.offset(node.node, now_s)}
            for node in there
        ],
        "timeline": sorted(lines, key=lambda line: (line["at_s"], line["node"], line["process"])),
    }


def _named(
    node: NodeRunners, runner: Row, models: Mapping[str, str], clocks: Clocks
) -> dict[str, Any]:
    model = runner.get("model") or models.get(str(runner.get("instance"))) or _loaded(runner)
    ended_at_s = runner["ended_at_s"]
    return {
        "node": node.node,
        "name": node.name,
        **runner,
        "model": model,
        "ended_at_s": None if ended_at_s is None else clocks.here(node.node, ended_at_s)[0],
        "recorder": [clocks.entry(node.node, entry) for entry in runner["recorder"]],
    }


def _loaded(runner: Row) -> str | None:
    """Return the model that a runner has loaded, from its recorder."""
    return next((entry["model"] for entry in runner["recorder"] if "model" in entry), None)


def _place(runner: Row) -> tuple[Any, ...]:
    """Return the key that sorts runners: running ones first, then the latest ended first."""
    ended_at_s = runner["ended_at_s"]
    model, instance = runner["model"] or "", runner["instance"] or ""
    return ended_at_s is not None, -(ended_at_s or 0.0), model, instance, runner["rank"]


def _lines(runner: Row, most: int) -> list[dict[str, Any]]:
    whose = ("node", "name", "process", "pid", "instance", "generation", "rank")
    head = {name: runner[name] for name in whose}
    return [{**head, **entry} for entry in runner["recorder"][-most:]]


def _without_entries(runner: dict[str, Any], most: int) -> dict[str, Any]:
    entries = cast(Sequence[Row], runner["recorder"])
    rest = {name: value for name, value in runner.items() if name != "recorder"}
    return {**rest, "last": entries[-1] if entries else None, "entries": min(len(entries), most)}
