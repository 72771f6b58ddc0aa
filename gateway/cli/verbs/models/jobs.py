"""Talks to the node's API about requests that run without their clients: `shoal jobs`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.command import Invocation

NONE = "-"
Row = Mapping[str, Any]
JobName = Annotated[str, typer.Argument(help="The job, as listed by `shoal jobs ls`.")]
OfAll = Annotated[
    bool, typer.Option("--all", "-a", help="Jobs of every API key; needs an admin key.")
]


def ls(
    invocation: Invocation,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100, help="Number of jobs, latest first.")
    ] = 20,
    of_all: OfAll = False,
) -> None:
    """List the jobs of this node, without their results."""
    output = invocation.output
    found = invocation.api().get(f"/v1/jobs?limit={limit}&all={_word(of_all)}")
    output.document(found)
    columns = ("job", "state", "path", ">priority", ">attempts", ">tokens", "created", "error")
    of = [[_or_none(row["key"])] if of_all else [] for row in found["data"]]
    rows = [_cells(row) + key for row, key in zip(found["data"], of, strict=True)]
    output.table((*columns, *(("key",) if of_all else ())), rows)
    if not found["data"]:
        output.note("no jobs; submit one with POST /v1/jobs (docs/operations/http-api.md)")


def show(invocation: Invocation, job: JobName, of_all: OfAll = False) -> None:
    """Show a job, and its result if it has ended."""
    _show(invocation, invocation.api().get(f"/v1/jobs/{job}?all={_word(of_all)}"))


def cancel(invocation: Invocation, job: JobName, of_all: OfAll = False) -> None:
    """Cancel a job. Its output so far is kept."""
    path = f"/v1/jobs/{job}/cancel?all={_word(of_all)}"
    _show(invocation, invocation.api().post(path, {}, timeout_s=30.0))


def _show(invocation: Invocation, found: Row) -> None:
    output = invocation.output
    output.document(dict(found))
    told = {
        "job": found["id"],
        "state": found["status"],
        "path": found["path"],
        "key": _or_none(found["key"]),
        "created": _when(found["created_at"]),
        "started": _when(found["started_at"]),
        "ended": _when(found["ended_at"]),
        "kept until": _when(found["expires_at"]),
        "ahead": NONE if found["position"] is None else str(found["position"]),
        "attempts": str(found["attempts"]),
        "tokens": str(found["progress"]["tokens"]),
        "events": str(found["progress"]["events"]),
        "error": _error(found),
    }
    output.table(("what", "value"), list(told.items()))
    if found["result"] is not None:
        output.note("see --json for its result")
    elif found["progress"]["events"]:
        output.note(f"see GET /v1/jobs/{found['id']}/events for its output")


def _cells(row: Row) -> list[str]:
    return [
        row["id"],
        row["status"],
        row["path"],
        str(row["priority"]),
        str(row["attempts"]),
        str(row["progress"]["tokens"]),
        _when(row["created_at"]),
        _error(row),
    ]


def _word(of_all: bool) -> str:
    return "true" if of_all else "false"


def _or_none(text: str | None) -> str:
    return text or NONE


def _error(row: Row) -> str:
    return NONE if row["error"] is None else str(row["error"]["code"])


def _when(seconds: float | None) -> str:
    form = "%Y-%m-%d %H:%M:%S"
    return NONE if seconds is None else time.strftime(form, time.localtime(seconds))
