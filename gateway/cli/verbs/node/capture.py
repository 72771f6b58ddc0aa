"""Talks to the API and the disk: `shoal capture` writes one file with diagnostics of all nodes."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from gateway.cli.command import Invocation
from gateway.cli.output.errors import CliError
from gateway.cli.output.own_file import write_own

PATH = "/v1/diagnostics/capture"
WHOLE_S = 150.0
MANIFEST = "shoal-capture/manifest.json"


def capture(
    invocation: Invocation,
    to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write; default: a file here, named after the time.",
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NODE", help="Only this node; may be repeated."),
    ] = None,
) -> None:
    """Save diagnostics of each node to one file: stacks, flight recorders, memory, logs, versions
    and settings. The file contains no prompts, answers or keys. It lists the nodes that were
    unreachable and the parts that are missing."""
    api, output = invocation.api(), invocation.output
    output.note("this takes some seconds, or up to a minute if a process hangs")
    content = api.file(PATH, {"nodes": nodes or []}, timeout_s=WHOLE_S)
    manifest = manifest_of(content)
    path = to or Path(f"shoal-capture-{manifest['made_at']}.tar.gz")
    write_own(path, content, replace=to is not None)
    rows = cast(list[dict[str, Any]], manifest["nodes"])
    output.document({"file": str(path), "bytes": len(content), "nodes": rows})
    output.table(
        ("node", ">files", ">missing", "note"),
        [
            (
                row["name"],
                len(row.get("files", ())),
                len(row.get("missing", ())) if row["reached"] else "all",
                _note(row),
            )
            for row in rows
        ],
    )
    output.say(f"{path} ({len(content) / 1000:.0f} kB); its `manifest.json` lists what is missing")


def manifest_of(content: bytes) -> dict[str, Any]:
    """Return the manifest of a capture. Raises CliError if the file is no capture."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
            file = tar.extractfile(MANIFEST)
            if file is None:
                raise KeyError(MANIFEST)
            return cast(dict[str, Any], json.loads(file.read()))
    except (tarfile.TarError, KeyError, ValueError, EOFError, OSError) as error:
        raise CliError(
            "the node sent no capture; check that it runs this version of shoal"
        ) from error


def _note(row: dict[str, Any]) -> str:
    if not row["reached"]:
        return str(row["message"])
    stopped = cast(list[str], row["stopped"])
    return f"stopped: {', '.join(stopped)}" if stopped else "-"
