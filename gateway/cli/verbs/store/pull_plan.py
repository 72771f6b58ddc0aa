"""Talks to the terminal: `shoal pull --dry-run`, what a pull would bring and where it would fit."""

from __future__ import annotations

from typing import Any

from gateway.cli.output.amounts import size
from gateway.cli.output.terminal import Output

WORDS = {
    "now": "it fits",
    "later": "it fits after others are evicted",
    "never": "it fits on no node",
    "unknown": "unknown: no memory estimate",
}


def show_plan(output: Output, plan: dict[str, Any]) -> None:
    """Say what a pull would bring."""
    output.document(plan)
    if plan["known_as"]:
        output.note(f"{plan['known_as']} stands for {plan['model']}")
    for name, text in _rows(plan):
        if text:
            output.say(f"{name:<10}{text}")
    if plan["nodes"]:
        columns = ("node", ">needs", ">can give", ">ever", "missing")
        output.table(columns, [_node(node) for node in plan["nodes"]])
    for name, why in plan["blocked"].items():
        output.note(f"{name}: {why}")
    if plan["why"]:
        output.say(plan["why"])
    if plan["fits"] == "never":
        output.note("`shoal pull` refuses it; use `--anyway` to pull it anyway")


def _rows(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is told of the model, by what it is."""
    bill, placement = plan["bill"], plan["placement"]
    where = ", ".join(rank["name"] for rank in placement["ranks"]) if placement else ""
    speed = plan["tokens_per_s"]
    return [
        ("model", plan["model"]),
        ("revision", plan["revision"]),
        ("to fetch", _fetch(plan)),
        ("disk", _disk(plan["disk"])),
        ("memory", "unknown" if bill is None else bill["arithmetic"]),
        ("fits", WORDS[plan["fits"]] + (f" now: {where}" if where else "")),
        ("speed", f"unknown: {plan['no_speed']}" if speed is None else _speed(speed)),
    ]


def _speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f} tokens/s, a prediction for one stream"


def _fetch(plan: dict[str, Any]) -> str:
    """Return how much would come, and from where."""
    if plan["note"]:
        return str(plan["note"])
    if plan["sources"]:
        return f"{size(plan['fetch_bytes'])} from {', '.join(plan['sources'])}"
    here = plan["total_bytes"] - plan["fetch_bytes"]
    kept = f", {size(here)} is already here" if here else ""
    return f"{size(plan['fetch_bytes'])} ({plan['files']} files at {plan['hub']}{kept})"


def _disk(disk: dict[str, Any] | None) -> str:
    """Return what is free on the disk, and what it lacks."""
    if disk is None:
        return ""
    lacks = f", {size(disk['missing_bytes'])} too little" if disk["missing_bytes"] else ""
    return f"{size(disk['free_bytes'])} free{lacks}"


def _node(one: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of the nodes."""
    missing = f"{size(one['missing_bytes'])} now" if one["missing_bytes"] else "-"
    if one["never_bytes"]:
        missing += f", {size(one['never_bytes'])} even when empty"
    if not one["has_slot"]:
        missing += ", a runner slot"
    give, ever = size(one["usable_bytes"]), size(one["ceiling_bytes"])
    return one["name"], size(one["need_bytes"]), give, ever, missing
