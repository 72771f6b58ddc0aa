"""Talks to the node's API about models in memory: `shoal pool`, `pin`, `unpin`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.command import Invocation
from gateway.cli.output.amounts import size, span
from gateway.cli.output.terminal import Output

LOOK_S = 1.0
Row = Mapping[str, Any]
PinnedName = Annotated[str, typer.Argument(help="A model, as listed by `shoal ls`.")]


def pool(
    invocation: Invocation,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat each second, until Ctrl-C.")
    ] = False,
) -> None:
    """Show which models wait for memory and why, and the state of the models in memory."""
    api, output = invocation.api(), invocation.output
    while True:
        answer = api.get("/pool")
        output.document(answer)
        _show(output, answer)
        if not watch:
            return
        time.sleep(LOOK_S)


def pin(
    invocation: Invocation,
    model: PinnedName,
    by: Annotated[str, typer.Option("--by", help="Name of the user, shown to others.")] = "",
) -> None:
    """Pin a model in memory, and load it if needed. A pinned model is never evicted."""
    answer = invocation.api().post("/pin", {"model": model, "by": by})
    invocation.output.document(answer)
    invocation.output.say(f"pinned {answer['model']}")


def unpin(invocation: Invocation, model: PinnedName) -> None:
    """Unpin a model, so that it can be evicted or, when idle, unloaded."""
    answer = invocation.api().post("/unpin", {"model": model})
    invocation.output.document(answer)
    invocation.output.say(f"unpinned {answer['model']}")


def wait_line(wait: Row) -> str:
    """Return what a model waits for, for people."""
    parts = [f"{wait['model']} waits {span(wait['waited_s'])}: {wait['why']}"]
    if wait["ready_in_s"] is not None:
        parts.append(f"ready in about {span(wait['ready_in_s'])}")
    if wait["within_s"] is not None:
        parts.append(f"at most {span(wait['within_s'])}, plus the time of running answers")
    if wait["ahead"]:
        parts.append(f"{wait['ahead']} ahead in the queue")
    return "; ".join(parts)


def copy_lines(copy: Row) -> list[str]:
    """Return why an instance is a replica and why it is evicted, for people. Empty if it is
    neither."""
    name = f"{copy['model']} ({copy['instance']})"
    came = [f"{name} is a replica: {copy['replica']}"] if copy["replica"] else []
    return [*came, *([f"{name} is evicted: {copy['leaves']}"] if copy["leaves"] else [])]


def _show(output: Output, answer: Row) -> None:
    for wait in answer["waits"]:
        output.say(wait_line(wait))
    rows = [
        (
            copy["model"],
            copy["instance"],
            "in use" if copy["in_use"] else "idle",
            span(copy["turn_left_s"]) if copy["turn_left_s"] else "",
            copy["yields_to"],
            copy["pinned_by"] or "",
            span(copy["load_s"]),
        )
        for copy in answer["copies"]
    ]
    output.table(
        ("model", "instance", "use", ">min. residency", "evicted for", "pinned by", ">load"), rows
    )
    for copy in answer["copies"]:
        for line in copy_lines(copy):
            output.say(line)
    there = {copy["model"] for copy in answer["copies"]}
    for row in answer["pins"]:
        if row["model"] not in there:
            output.say(f"{row['model']} is pinned but not in memory")
    for row in answer["leases"]:
        claim = f", asked back for {row['yields_to']}" if row["yields_to"] else ""
        owner = row["owner"] or "someone"
        output.say(f"{size(row['size_bytes'])} on {row['node_name']} leased to {owner}{claim}")
    if not rows and not answer["waits"]:
        output.note("no models in memory, and none waiting")
