"""Talks to the node's API to have a model made of another in fewer bits: `shoal quantize`."""

from __future__ import annotations

import time
from typing import Annotated, Any, cast

import typer
from rich.progress import DownloadColumn, TimeRemainingColumn

from gateway.cli.command import Invocation
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import FAILED, NOT_FOUND, CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.models.instances import ModelName

LOOK_S = 0.25
KNOWN_S = 5.0
"""A process that answers may hear of what was begun, or ended, so much later."""
LISTED_S = 20.0


def quantize(
    invocation: Invocation,
    model: ModelName,
    bits: Annotated[int, typer.Option("--bits", help="4, 6 or 8 bits a weight.")] = 4,
    name: Annotated[
        str | None, typer.Option("--name", help="What it is to be called, else MODEL-4bit.")
    ] = None,
    group_size: Annotated[
        int, typer.Option("--group-size", help="Weights that share a scale: 32, 64 or 128.")
    ] = 64,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NODE", help="The node that makes it.")
    ] = None,
) -> None:
    """Make a model of another in fewer bits, on a node that has that. Ctrl-C ends it, and leaves
    nothing."""
    api, output = invocation.api(), invocation.output
    asked = {"model": model, "bits": bits, "name": name, "group_size": group_size, "node": on}
    begun = cast(dict[str, Any], api.post("/models/quantize", asked))
    made = str(begun["model"])
    _follow(api, str(begun["instance"]), made, output)
    card = _listed(api, made)
    output.document(card)
    before, after = begun["source_bytes"], card["size_bytes"]
    output.say(f"made {made} of {begun['source']} ({size(before)} became {size(after)})")
    output.note(f'`shoal run {made} "..."` asks it something')


def _follow(api: NodeApi, instance: str, made: str, output: Output) -> None:
    """Wait for the end. An interrupt of the wait ends the work. Raises CliError where it fails."""
    known_by_at = time.monotonic() + KNOWN_S
    try:
        with output.progress(f"making {made}", DownloadColumn(), TimeRemainingColumn()) as show:
            while True:
                try:
                    found = cast(dict[str, Any], api.get(f"/instance/{instance}"))
                except CliError as problem:
                    if problem.code != NOT_FOUND:
                        raise
                    if time.monotonic() > known_by_at:
                        return
                    time.sleep(LOOK_S)
                    continue
                known_by_at = 0.0
                one = found["instance"]
                reading = cast(dict[str, Any], found["reading"] or {})
                if one["status"] == "failed":
                    raise CliError(
                        f"{made} was not made: {one['why']}", remedy="see `shoal logs`", code=FAILED
                    )
                done, total = reading.get("done_bytes", 0), reading.get("total_bytes", 0)
                words = f"making {made}" + (f": {100 * done // total} %" if total else "")
                show(words, description="making", completed=done, total=total or None)
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        output.note("ended; nothing of it is left")
        api.delete(f"/instance/{instance}")
        raise


def _listed(api: NodeApi, made: str) -> dict[str, Any]:
    """Return the card of what was made, once the node lists it. Raises CliError."""
    gives_up_at = time.monotonic() + LISTED_S
    while time.monotonic() < gives_up_at:
        card = next((card for name, card in api.state().models.items() if name == made), None)
        if card is not None:
            return card.model_dump(mode="json")
        time.sleep(LOOK_S)
    text = f"{made} was ended before it was made, or no node lists it yet"
    raise CliError(text, remedy="see `shoal ls` and `shoal logs worker`", code=FAILED)
