"""Talks to the node's API about disk space of models: `shoal store show`, `purge`."""

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
DELETED_S = 3_600.0
"""How long `shoal ls` shows deleted models."""
Row = Mapping[str, Any]


def show(invocation: Invocation) -> None:
    """Show the downloaded models on each node's disk, which of them is deleted next, and why the
    other models stay."""
    answer, output = invocation.api().get("/store/storage"), invocation.output
    output.document(answer)
    rows = [
        (
            node["name"],
            size(node["bytes"]["fetched"]),
            _limit(node),
            size(node["bytes"]["put"]),
            size(node["bytes"]["made"]),
            size(node["disk_free_bytes"]),
        )
        for node in answer["nodes"]
    ]
    columns = ("node", ">fetched", ">limit", ">added by user", ">made", ">free on disk")
    output.table(columns, rows)
    for node in answer["nodes"]:
        for model in node["models"]:
            if model["what"] == "fetched":
                why = model["why"] or "can be deleted"
                output.say(f"{_words(model)} on {node['name']}: {why}")
        for model in node["let_go"]:
            output.say(_deletion(node["name"], model))


def purge(
    invocation: Invocation,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be deleted.")
    ] = False,
    node: Annotated[
        str | None, typer.Option("--node", help="A node's id or name, or `all`.")
    ] = None,
) -> None:
    """Delete downloaded models that can be downloaded again. Models in use, models that the user
    added, and the last complete copy of a model are kept."""
    output = invocation.output
    body = {"dry_run": dry_run, "node": node}
    answer = invocation.api().post("/store/purge-staging", body, timeout_s=PURGE_S)
    output.document(answer)
    for result in answer["nodes"]:
        name = result["name"]
        for model in result["would_go"]:
            output.say(f"would delete {_words(model)} on {name}")
        for model in result["let_go"]:
            output.say(f"deleted {_words(model)} on {name}")
        for model in result["stays"]:
            output.say(f"kept {_words(model)} on {name}: {model['why']}")
        if not (result["would_go"] or result["let_go"] or result["stays"]):
            output.note(f"{name} has no downloaded models")


def show_stores(state: NodeState, output: Output) -> None:
    """Show nodes whose downloaded models use too much space, the next model to delete, and recent
    deletions."""
    for reading in state.storage:
        name = state.names.get(reading.node, reading.node)
        limited = reading.limit_bytes >= 0 and not reading.keeps_all
        if limited and reading.fetched_bytes > reading.limit_bytes:
            going = next(
                (model for model in reading.models if model.what == "fetched" and not model.why),
                None,
            )
            text = f"{name} has {size(reading.fetched_bytes)} of downloaded models; the limit is"
            then = (
                f"{going.model} is deleted next"
                if going
                else "none can be deleted; see `shoal store show`"
            )
            output.note(f"{text} {size(reading.limit_bytes)}; {then}")
        for deletion in reading.let_go:
            if wall() - deletion.at_s < DELETED_S:
                output.note(_deletion(name, deletion.model_dump(mode="json")))


def _limit(node: Row) -> str:
    if node["store"]:
        return "keeps all"
    return "-" if node["store_bytes"] < 0 else size(node["store_bytes"])


def _words(model: Row) -> str:
    part = "layers of " if model.get("in_part") else ""
    return f"{part}{model['model']} ({size(model['size_bytes'])})"


def _deletion(node: str, model: Row) -> str:
    ago = span(max(0.0, wall() - model["at_s"]))
    return f"{node} deleted {_words(model)} {ago} ago: {model['why']}"
