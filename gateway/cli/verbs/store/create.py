"""Talks to the node's API: `shoal create` makes a derived model from a Modelfile."""

from __future__ import annotations

from typing import Annotated

import typer

from bus.wire.messages.derived import plain_name
from gateway.cli.command import Invocation
from gateway.cli.verbs.store.editing import read_text

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the new model.")]


def create(
    invocation: Invocation,
    name: Name,
    source: Annotated[
        str, typer.Option("--file", "-f", metavar="FILE", help="The Modelfile; -: standard input.")
    ] = "Modelfile",
) -> None:
    """Create a model from a Modelfile: system prompt, parameters, messages and adapter. The new
    model uses the weights of its base model. It replaces an earlier model of the same name on every
    node."""
    output = invocation.output
    text = read_text(source, remedy="pass the Modelfile with --file")
    body = {"model": name, "modelfile": text, "stream": False}
    invocation.api().post("/api/create", body)
    made = plain_name(name)
    output.document({"name": made})
    output.say(f"created {made} on every node; see `shoal show {made}`")
