"""Talks to the node's API: `shoal quantize` makes a smaller model."""

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
LEARN_S = 5.0
"""How long the HTTP process that answers may take to learn that a quantization began or ended."""
LISTED_S = 20.0


def quantize(
    invocation: Invocation,
    model: ModelName,
    bits: Annotated[int, typer.Option("--bits", help="Bits per weight: 4, 6 or 8.")] = 4,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new model; default: MODEL-4bit.")
    ] = None,
    group_size: Annotated[
        int, typer.Option("--group-size", help="Weights per scale: 32, 64 or 128.")
    ] = 64,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NODE", help="The node that quantizes.")
    ] = None,
) -> None:
    """Quantize a model to fewer bits, on a node that has it. Ctrl-C cancels and deletes partial
    files."""
    api, output = invocation.api(), invocation.output
    body = {"model": model, "bits": bits, "name": name, "group_size": group_size, "node": on}
    begun = cast(dict[str, Any], api.post("/models/quantize", body))
    made = str(begun["model"])
    _follow(api, str(begun["instance"]), made, output)
    card = _wait_listed(api, made)
    output.document(card)
    before, after = begun["source_bytes"], card["size_bytes"]
    output.say(f"made {made} from {begun['source']} ({size(before)} to {size(after)})")
    output.note(f'try it: `shoal run {made} "..."`')


def _follow(api: NodeApi, instance: str, made: str, output: Output) -> None:
    """Wait until the quantized model is made. An interrupt cancels the work. Raises CliError if it
    fails."""
    known_by_at = time.monotonic() + LEARN_S
    try:
        with output.progress(f"making {made}", DownloadColumn(), TimeRemainingColumn()) as show:
            while True:
                try:
                    answer = cast(dict[str, Any], api.get(f"/instance/{instance}"))
                except CliError as problem:
                    if problem.code != NOT_FOUND:
                        raise
                    if time.monotonic() > known_by_at:
                        return
                    time.sleep(LOOK_S)
                    continue
                known_by_at = 0.0
                row = answer["instance"]
                reading = cast(dict[str, Any], answer["reading"] or {})
                if row["status"] == "failed":
                    raise CliError(
                        f"cannot make {made}: {row['why']}", remedy="see `shoal logs`", code=FAILED
                    )
                done, total = reading.get("done_bytes", 0), reading.get("total_bytes", 0)
                words = f"making {made}" + (f": {100 * done // total} %" if total else "")
                show(words, description="making", completed=done, total=total or None)
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        output.note("cancelled; its files were deleted")
        api.delete(f"/instance/{instance}")
        raise


def _wait_listed(api: NodeApi, made: str) -> dict[str, Any]:
    """Wait until a node lists the new model, then return its model card. Raises CliError."""
    gives_up_at = time.monotonic() + LISTED_S
    while time.monotonic() < gives_up_at:
        card = next((card for name, card in api.state().models.items() if name == made), None)
        if card is not None:
            return card.model_dump(mode="json")
        time.sleep(LOOK_S)
    text = f"making {made} was cancelled, or no node lists it yet"
    raise CliError(text, remedy="see `shoal ls` and `shoal logs worker`", code=FAILED)
