"""Talks to the node's API: `shoal create`, a model made of another by a Modelfile."""

from __future__ import annotations

from typing import Annotated

import typer

from bus.wire.messages.derived import plain_name
from gateway.cli.command import Invocation
from gateway.cli.verbs.store.editing import read_text

Name = Annotated[str, typer.Argument(metavar="NAME", help="What the model is to go by.")]


def create(
    invocation: Invocation,
    name: Name,
    source: Annotated[
        str, typer.Option("--file", "-f", metavar="FILE", help="What it is; -: standard input.")
    ] = "Modelfile",
) -> None:
    """Make a model of another by a Modelfile: its system prompt, parameters, messages and
    adapter. It has no weights of its own, and every node knows it at once and after restarts; what
    was made under the name before is replaced."""
    output = invocation.output
    text = read_text(source, remedy="name the Modelfile with --file")
    asked = {"model": name, "modelfile": text, "stream": False}
    invocation.api().post("/api/create", asked)
    made = plain_name(name)
    output.document({"name": made})
    output.say(f"{made} is made, on every node; `shoal show {made}` tells what it is")
