"""Talks to the node's API about jobs, requests that run without a waiting client: `shoal jobs`."""

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
    answer = invocation.api().get(f"/v1/jobs?limit={limit}&all={_word(of_all)}")
    output.document(answer)
    columns = ("job", "state", "path", ">priority", ">attempts", ">tokens", "created", "error")
    of = [[_or_none(row["key"])] if of_all else [] for row in answer["data"]]
    rows = [_cells(row) + key for row, key in zip(answer["data"], of, strict=True)]
    output.table((*columns, *(("key",) if of_all else ())), rows)
    if not answer["data"]:
        output.note("no jobs; submit one with POST /v1/jobs (docs/operations/http-api.md)")


def show(invocation: Invocation, job: JobName, of_all: OfAll = False) -> None:
    """Show a job, and its result if it has ended."""
    _show(invocation, invocation.api().get(f"/v1/jobs/{job}?all={_word(of_all)}"))


def cancel(invocation: Invocation, job: JobName, of_all: OfAll = False) -> None:
    """Cancel a job. Its output so far is kept."""
    path = f"/v1/jobs/{job}/cancel?all={_word(of_all)}"
    _show(invocation, invocation.api().post(path, {}, timeout_s=30.0))


def _show(invocation: Invocation, job: Row) -> None:
    output = invocation.output
    output.document(dict(job))
    rows = {
        "job": job["id"],
        "state": job["status"],
        "path": job["path"],
        "key": _or_none(job["key"]),
        "created": _when(job["created_at"]),
        "started": _when(job["started_at"]),
        "ended": _when(job["ended_at"]),
        "kept until": _when(job["expires_at"]),
        "ahead": NONE if job["position"] is None else str(job["position"]),
        "attempts": str(job["attempts"]),
        "tokens": str(job["progress"]["tokens"]),
        "events": str(job["progress"]["events"]),
        "error": _error(job),
    }
    output.table(("what", "value"), list(rows.items()))
    if job["result"] is not None:
        output.note("see --json for its result")
    elif job["progress"]["events"]:
        output.note(f"see GET /v1/jobs/{job['id']}/events for its output")


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
