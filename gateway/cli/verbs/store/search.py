"""Talks to the node's API: `shoal search` finds models on a hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from gateway.cli.command import Invocation
from gateway.cli.node.node_api import without_none
from gateway.cli.output.amounts import number, size

SEARCH_S = 100.0
MOST = 50
NONE = "-"


def search(
    invocation: Invocation,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORDS", help="Words in the model's name.")
    ] = None,
    author: Annotated[
        str | None, typer.Option("--author", metavar="ORG", help="Only models of this owner.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MOST, help="Maximum number of models.")
    ] = 20,
) -> None:
    """Search the Hugging Face hub for models that run on shoal. MLX models come first."""
    output = invocation.output
    query = without_none({"query": " ".join(words or ()) or None, "author": author, "limit": limit})
    answer = invocation.api().get(f"/models/search?{urlencode(query)}", timeout_s=SEARCH_S)
    output.document(answer)
    columns = ("model", "for", "family", "makes", ">parameters", "quantised", ">size",
               ">downloads", "here on")  # fmt: skip
    if answer["models"]:
        output.table(columns, [_cells(model) for model in answer["models"]])
    else:
        output.say(f"{answer['hub']} has no matching model that runs here")
    if answer["left_out"]:
        count = answer["left_out"]
        matches = "match does" if count == 1 else "matches do"
        output.note(f"{count} more {matches} not run here")
    for model in answer["models"]:
        if model["gated"]:
            output.note(f"{model['model']} is gated: accept its license at {answer['hub']}")
    for model in answer["models"]:
        if model["quantizations"]:
            names = ", ".join(model["quantizations"])
            output.note(f"{model['model']} has {names}: pull one as {model['model']}:QUANTISATION")
    wanted = next((model["model"] for model in answer["models"] if not model["here"]), None)
    if wanted is not None:
        output.note(f"download it with `shoal pull {wanted}`; check that it fits with `--dry-run`")


def _engine(model: Mapping[str, Any]) -> str:
    """Return what the model's weights are for: MLX, llama-server, or any engine."""
    if model["for_mlx"]:
        return "mlx"
    return "gguf" if model["quantizations"] else "any"


def _cells(model: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        model["model"],
        _engine(model),
        model["family"] or NONE,
        model["makes"],
        number(model["parameters"] or 0),
        model["quantization"] or NONE,
        size(model["size_bytes"]) if model["size_bytes"] else NONE,
        number(model["downloads"]),
        ", ".join(model["here"]) or NONE,
    )
