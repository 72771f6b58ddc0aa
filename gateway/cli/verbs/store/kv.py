"""Talks to the disk: `shoal kv ls` and `purge`, for KV of long prompts (decisions 0099 and 0106).

Runners write and read these files. If a file was deleted, the runner computes the prompt again.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bus.models.kv import KvFile, kv_files, kv_root
from bus.models.kv import purge as delete_files
from bus.process.clock import wall
from gateway.cli.command import Invocation
from gateway.cli.output.amounts import size, span
from gateway.cli.output.errors import CliError

Model = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="A model; default: all models.")
]


def ls(invocation: Invocation, model: Model = None) -> None:
    """List the models whose KV is on this node's disk. For each model: the number of prompts, of
    copies from other nodes and of tokens, the size, and the last use."""
    settings, output = invocation.settings(), invocation.output
    by_model: dict[str, list[KvFile]] = {}
    for file in kv_files(kv_root(settings.paths.state), model):
        by_model.setdefault(file.model, []).append(file)
    models = [
        {
            "model": name,
            "prompts": sum(not file.unfinished for file in files),
            "copies": sum(bool(file.origin) for file in files),
            "tokens": sum(file.tokens for file in files),
            "size_bytes": sum(file.size_bytes for file in files),
            "last_used_at_s": max(file.used_at_s for file in files),
        }
        for name, files in sorted(by_model.items())
    ]
    limit = settings.runner.kv_disk_bytes
    output.document({"models": models, "limit_bytes": limit})
    rows = [
        (
            row["model"],
            str(row["prompts"]),
            str(row["copies"]),
            str(row["tokens"]),
            size(int(row["size_bytes"])),
            f"{span(max(0.0, wall() - float(row['last_used_at_s'])))} ago",
        )
        for row in models
    ]
    output.table(("model", ">prompts", ">copies", ">tokens", ">size", ">last used"), rows)
    output.note(
        f"the limit is {size(limit)} (runner.kv_disk_bytes)" if limit else "KV on disk is off"
    )


def purge(invocation: Invocation, model: Model = None) -> None:
    """Delete the KV of long prompts from this node's disk, of one model or of all. Runners compute
    these prompts again. Other nodes delete their copies of this KV within a minute."""
    root, output = kv_root(invocation.settings().paths.state), invocation.output
    try:
        count, total = delete_files(root, model)
    except OSError as error:
        raise CliError(str(error), remedy="check the permissions of the folder") from error
    output.document({"files": count, "size_bytes": total})
    output.say(f"deleted {count} files ({size(total)})")
