"""Talks to the node's API to find models of a hub by words: `shoal search`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from gateway.cli.command import Invocation
from gateway.cli.node.node_api import told
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
    asked = told({"query": " ".join(words or ()) or None, "author": author, "limit": limit})
    found = invocation.api().get(f"/models/search?{urlencode(asked)}", timeout_s=SEARCH_S)
    output.document(found)
    columns = ("model", "for", "family", "makes", ">parameters", "quantised", ">size",
               ">downloads", "here on")  # fmt: skip
    if found["models"]:
        output.table(columns, [_cells(model) for model in found["models"]])
    else:
        output.say(f"{found['hub']} has no matching model that runs here")
    if found["left_out"]:
        output.note(f"{found['left_out']} more matches do not run here")
    for model in found["models"]:
        if model["gated"]:
            output.note(f"{model['model']} is gated: accept its license at {found['hub']}")
    wanted = next((model["model"] for model in found["models"] if not model["here"]), None)
    if wanted is not None:
        output.note(f"download it with `shoal pull {wanted}`; check that it fits with `--dry-run`")


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        one["model"],
        "mlx" if one["for_mlx"] else "any",
        one["family"] or NONE,
        one["makes"],
        number(one["parameters"] or 0),
        one["quantization"] or NONE,
        size(one["size_bytes"]) if one["size_bytes"] else NONE,
        number(one["downloads"]),
        ", ".join(one["here"]) or NONE,
    )
