"""Talks to the terminal: `shoal pull --dry-run` shows the files of a pull and the nodes whose
memory is enough for the model."""

from __future__ import annotations

from typing import Any

from gateway.cli.output.amounts import size
from gateway.cli.output.terminal import Output

OFFERED = ("chosen", "to fetch", "disk", "fits", "speed", "why")
WORDS = {
    "now": "it fits",
    "later": "it fits after other models are evicted",
    "never": "it fits on no node",
    "unknown": "unknown: no memory estimate",
}


def show_plan(output: Output, plan: dict[str, Any]) -> None:
    """Write the plan as JSON or for people."""
    output.document(plan)
    if plan["known_as"]:
        output.note(f"{plan['known_as']} stands for {plan['model']}")
    for name, text in _rows(plan):
        if text:
            output.say(f"{name:<10}{text}")
    if plan["nodes"]:
        columns = ("node", ">needs", ">can give now", ">at most", "missing")
        output.table(columns, [_node(node) for node in plan["nodes"]])
    for name, why in plan["blocked"].items():
        output.note(f"{name}: {why}")
    if plan["why"]:
        output.say(plan["why"])
    if plan["fits"] == "never":
        output.note("`shoal pull` refuses this model; use `--anyway` to pull it anyway")


def offer_rows(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (label, text) rows for a user who decides whether to pull the model."""
    rows = [*_rows(plan), ("why", plan["why"])]
    return [(name, text) for name, text in rows if name in OFFERED and text]


def _rows(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (label, text) rows about the model; empty texts are not shown."""
    bill, placement = plan["bill"], plan["placement"]
    where = ", ".join(rank["name"] for rank in placement["ranks"]) if placement else ""
    speed = plan["tokens_per_s"]
    return [
        ("model", plan["model"]),
        ("revision", plan["revision"]),
        ("chosen", plan["choice"]),
        ("to fetch", _fetch(plan)),
        ("disk", _disk(plan["disk"])),
        ("memory", "unknown" if bill is None else bill["arithmetic"]),
        ("fits", WORDS[plan["fits"]] + (f" now: {where}" if where else "")),
        ("speed", f"unknown: {plan['no_speed']}" if speed is None else _speed(speed)),
    ]


def _speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f} tokens/s, a prediction for one stream"


def _fetch(plan: dict[str, Any]) -> str:
    """Return the size of the download and its source."""
    if plan["note"]:
        return str(plan["note"])
    if plan["sources"]:
        return f"{size(plan['fetch_bytes'])} from {', '.join(plan['sources'])}"
    here = plan["total_bytes"] - plan["fetch_bytes"]
    present = f", {size(here)} is already here" if here else ""
    return f"{size(plan['fetch_bytes'])} ({plan['files']} files at {plan['hub']}{present})"


def _disk(disk: dict[str, Any] | None) -> str:
    """Return the free disk space, and how much is lacking."""
    if disk is None:
        return ""
    lacks = f", {size(disk['missing_bytes'])} too little" if disk["missing_bytes"] else ""
    return f"{size(disk['free_bytes'])} free{lacks}"


def _node(node: dict[str, Any]) -> tuple[str, ...]:
    missing = f"{size(node['missing_bytes'])} now" if node["missing_bytes"] else "-"
    if node["never_bytes"]:
        missing += f", {size(node['never_bytes'])} even without other models"
    if not node["has_slot"]:
        missing += ", a runner slot"
    give, ever = size(node["usable_bytes"]), size(node["ceiling_bytes"])
    return node["name"], size(node["need_bytes"]), give, ever, missing
