"""Talks to the node's API about tasks: `shoal tasks`. A task is a name that several models can
serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.command import Invocation
from gateway.cli.output.amounts import span

Row = Mapping[str, Any]
NONE = "-"


def tasks(
    invocation: Invocation,
    cloud_fallback: Annotated[
        bool | None,
        typer.Option(
            "--cloud-fallback/--no-cloud-fallback",
            help=("Allow or forbid providers as fallbacks of tasks, on all nodes."),
        ),
    ] = None,
) -> None:
    """Show the tasks in the tasks.toml of the node. For each task, show the models that can serve
    it, and which of them are loaded."""
    api, output = invocation.api(), invocation.output
    if cloud_fallback is not None:
        api.put("/api/v1/config", {"allowCloudFallback": cloud_fallback})
    answer = api.get("/tasks")
    if cloud_fallback is not None:  # another process of the gateway may not know it yet
        answer["allowCloudFallback"] = cloud_fallback
    output.document(answer)
    output.table(
        ("task", "candidates", "loaded", ">budget", ">keep-alive", "primary", "spills over"),
        [task_row(task) for task in answer["tasks"]],
    )
    if answer["models"]:
        output.say("")
        output.table(
            ("model", "spills over"), [(row["name"], _spill(row)) for row in answer["models"]]
        )
    if answer["providers"]:
        output.say("")
        output.table(
            ("provider", "kind", "at", "key", "models"),
            [_provider_row(provider) for provider in answer["providers"]],
        )
        allowed = "may" if answer["allowCloudFallback"] else "may not"
        output.say(f"providers {allowed} answer if the models before them in a task fail")
    if answer["trouble"]:
        output.note(f"{answer['trouble']}; the last valid version stays in force")
    if not answer["tasks"] and not answer["providers"]:
        output.note(f"no tasks; define them in {answer['file']} (docs/operations/http-api.md)")


def task_row(task: Row) -> tuple[str, ...]:
    """Return the row of a task: its models, in order. Unknown models are marked."""
    names = [
        f"{candidate['name']}{'' if candidate['known'] else ' (not here)'}"
        for candidate in task["candidates"]
    ]
    loaded = [candidate["name"] for candidate in task["candidates"] if candidate["loaded"]]
    return (
        task["name"],
        ", ".join(names),
        ", ".join(loaded) or NONE,
        _span(task["budget_s"]),
        _span(task["keep_alive_s"]),
        "pinned" if task["pin_primary"] else NONE,
        _spill(task),
    )


def _provider_row(provider: Row) -> tuple[str, ...]:
    key = provider["key_env"] or "none needed"
    return (
        provider["name"],
        provider["kind"],
        provider["base_url"],
        key if provider["has_key"] else f"{key} is not set",
        ", ".join(provider["models"]) or NONE,
    )


def _spill(row: Row) -> str:
    if row["spill_to"] is None:
        return NONE
    return f"to {row['spill_to']} after {row['spill_after_s']:g} s"


def _span(seconds: float | None) -> str:
    return NONE if seconds is None else span(seconds)
