"""Talks to the node's API about what lies on nodes' disks: `shoal store show`, `purge`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from bus.process.clock import wall
from gateway.cli.command import Invocation
from gateway.cli.node.node_state import NodeState
from gateway.cli.output.amounts import size, span
from gateway.cli.output.terminal import Output

PURGE_S = 600.0
TOLD_S = 3_600.0
"""How long `shoal ls` shows deleted models."""
Row = Mapping[str, Any]


def show(invocation: Invocation) -> None:
    """Show downloaded models on each node's disk, which is deleted next, and why others stay."""
    found, output = invocation.api().get("/store/storage"), invocation.output
    output.document(found)
    rows = [
        (
            node["name"],
            size(node["bytes"]["fetched"]),
            _limit(node),
            size(node["bytes"]["put"]),
            size(node["bytes"]["made"]),
            size(node["disk_free_bytes"]),
        )
        for node in found["nodes"]
    ]
    columns = ("node", ">fetched", ">limit", ">added by user", ">made", ">free on disk")
    output.table(columns, rows)
    for node in found["nodes"]:
        for one in node["models"]:
            if one["what"] == "fetched":
                why = one["why"] or "may go"
                output.say(f"{_words(one)} on {node['name']}: {why}")
        for one in node["let_go"]:
            output.say(_gone(node["name"], one))


def purge(
    invocation: Invocation,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be deleted.")
    ] = False,
    node: Annotated[
        str | None, typer.Option("--node", help="A node's id or name, or `all`.")
    ] = None,
) -> None:
    """Delete downloaded models that can be downloaded again. It keeps models in use, models added
    by the user, and the last complete copy of a model."""
    output = invocation.output
    body = {"dry_run": dry_run, "node": node}
    found = invocation.api().post("/store/purge-staging", body, timeout_s=PURGE_S)
    output.document(found)
    for told in found["nodes"]:
        name = told["name"]
        for one in told["would_go"]:
            output.say(f"would delete {_words(one)} on {name}")
        for one in told["let_go"]:
            output.say(f"deleted {_words(one)} on {name}")
        for one in told["stays"]:
            output.say(f"kept {_words(one)} on {name}: {one['why']}")
        if not (told["would_go"] or told["let_go"] or told["stays"]):
            output.note(f"{name} has no downloaded models")


def said_of_stores(state: NodeState, output: Output) -> None:
    """Say what nodes would let go next, where they have too much, and what they let go."""
    for told in state.storage:
        name = state.names.get(told.node, told.node)
        limited = told.limit_bytes >= 0 and not told.keeps_all
        if limited and told.fetched_bytes > told.limit_bytes:
            going = next(
                (model for model in told.models if model.what == "fetched" and not model.why), None
            )
            text = f"{name} has {size(told.fetched_bytes)} of downloaded models; the limit is"
            then = (
                f"{going.model} is deleted next"
                if going
                else "none can be deleted; see `shoal store show`"
            )
            output.note(f"{text} {size(told.limit_bytes)}; {then}")
        for one in (one for one in told.let_go if wall() - one.at_s < TOLD_S):
            output.note(_gone(name, one.model_dump(mode="json")))


def _limit(node: Row) -> str:
    if node["store"]:
        return "keeps all"
    return "-" if node["store_bytes"] < 0 else size(node["store_bytes"])


def _words(one: Row) -> str:
    part = "layers of " if one.get("in_part") else ""
    return f"{part}{one['model']} ({size(one['size_bytes'])})"


def _gone(node: str, one: Row) -> str:
    ago = span(max(0.0, wall() - one["at_s"]))
    return f"{node} deleted {_words(one)} {ago} ago: {one['why']}"
