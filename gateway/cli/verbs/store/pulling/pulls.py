"""Talks to the node's API: `shoal pulls` lists the pulls of all nodes, and cancels, pauses or
resumes the pulls of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast
from urllib.parse import quote, urlencode

import typer

from gateway.cli.command import Invocation
from gateway.cli.output.amounts import size, span
from gateway.cli.output.errors import REFUSED, USAGE, CliError

NONE = "-"
CHANGE_S = 60.0
DONE = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}


def pulls(
    invocation: Invocation,
    act: Annotated[str, typer.Argument(help="list, cancel, pause or resume.")] = "list",
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model, as `shoal pulls` lists it.")
    ] = "",
    node: Annotated[
        str | None,
        typer.Option(
            "--node", metavar="NODE", help="Change only this node's pull; default: all nodes."
        ),
    ] = None,
) -> None:
    """Show the pulls of all nodes, or change the pulls of a model. `cancel` deletes the partial
    files. `resume` continues a pull that failed or was paused."""
    if act != "list":
        _change(invocation, act, model, node)
        return
    if model or node:
        raise CliError("`shoal pulls list` takes no MODEL and no --node", code=USAGE)
    output = invocation.output
    answer = cast(dict[str, Any], invocation.api().get("/models/pulls"))
    output.document(answer)
    rows = answer["pulls"]
    columns = ("model", "node", "state", ">done", ">of", ">rate", ">left", "note")
    if rows:
        output.table(columns, [_cells(row) for row in rows])
    else:
        output.say("no node pulls a model")
    stopped = next((row for row in rows if row["background"] and _can_resume(row)), None)
    if stopped is not None:
        output.note(f"`shoal pulls resume {stopped['model']}` continues it")


def _change(invocation: Invocation, act: str, model: str, node: str | None) -> None:
    """Cancel, pause or resume pulls. Raises CliError if a node did not do it."""
    if act not in DONE:
        raise CliError(f"unknown action {act!r}; use list, {', '.join(DONE)}", code=USAGE)
    if not model:
        raise CliError(f"`shoal pulls {act}` takes MODEL", code=USAGE)
    api, output = invocation.api(), invocation.output
    path = f"/models/pulls/{quote(model, safe='/:')}"
    if act == "cancel":
        query = "" if node is None else f"?{urlencode({'node': node})}"
        answer = api.delete(f"{path}{query}", timeout_s=CHANGE_S)
    else:
        answer = api.post(path, {"change": act, "node": node}, timeout_s=CHANGE_S)
    output.document(answer)
    failed: list[str] = []
    for result in answer["nodes"]:
        if result["why"]:
            failed.append(f"{result['name']}: {result['why']}")
            continue
        deleted = f" ({size(result['deleted_bytes'])} deleted)" if result["deleted_bytes"] else ""
        output.say(f"{DONE[act]} {answer['model']} on {result['name']}{deleted}")
    if failed:
        raise CliError(f"cannot {act} {answer['model']} on {'; '.join(failed)}", code=REFUSED)


def _can_resume(row: Mapping[str, Any]) -> bool:
    return row["state"] in ("failed", "paused")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["model"],
        row["name"],
        row["state"],
        size(row["completed"]) if row["total"] else NONE,
        size(row["total"]) if row["total"] else NONE,
        f"{size(row['bytes_per_s'])}/s" if row["bytes_per_s"] else NONE,
        NONE if row["eta_s"] is None else span(row["eta_s"]),
        _note(row),
    )


def _note(row: Mapping[str, Any]) -> str:
    """Return the note of a pull: its layers, the chosen quantisation of a GGUF repository, and why
    the pull waits or failed."""
    text = row["message"] if row["state"] == "failed" else row["note"]
    span = row.get("layers")
    layers = f"layers {span[0]} to {span[1] - 1}" if span else ""
    chosen, colon, _ = row["choice"].partition(":")
    return ": ".join(filter(None, (layers, colon and chosen, text))) or NONE
