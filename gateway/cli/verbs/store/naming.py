"""Talks to the node's API about names of models: `shoal cp` makes one, `shoal rm` has it go.

A name is a derived model that adds nothing of its own: it is in the cluster's state, so that every
node knows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from bus.wire.cards import ModelCard, model_named
from bus.wire.ids import ModelId
from bus.wire.messages.derived import DerivedModel, derived_named, plain_name
from gateway.cli.command import Invocation
from gateway.cli.node.node_state import NodeState, adapter_named
from gateway.cli.output.errors import CliError

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A model or one of its names.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The additional name.")]


def cp(invocation: Invocation, source: Source, name: Name) -> None:
    """Give a model an alias on every node. Nothing is copied on disk; requests for the alias use
    the model."""
    api, output = invocation.api(), invocation.output
    state = api.state()
    model = state.answering(source).model
    if taken := taken_by(state, plain_name(name)):
        raise CliError(f"{name} is {taken}", remedy="choose another name")
    api.post("/api/copy", {"source": source, "destination": name})
    output.document({"name": plain_name(name), "source": source, "model": model})
    output.say(f"{plain_name(name)} is now an alias of {model} on every node")


def taken_by(state: NodeState, name: str) -> str | None:
    """Return what a name stands for already, in words; None for a free one."""
    known = state.models
    if (model := model_named(name, {ModelId(one) for one in known})) is not None:
        return f"the name of {model}, which is on disk"
    if (derived := derived_named(name, state.state.derived)) is not None:
        return f"already an alias of {derived.base} (delete it with `shoal rm {derived.name}`)"
    if (card := aliased(state, name)) is not None:
        return f"an alias in the card of {card.model}"
    beside = adapter_named(state, name)
    return None if beside is None else f"{beside[0].model} with one of its adapters"


def aliased(state: NodeState, name: str) -> ModelCard | None:
    """Return the model whose own card gives it this name; None for none, and where a model on a
    disk goes by it."""
    plain, known = plain_name(name), state.models
    if plain in known:
        return None
    by_name = {alias.casefold(): card for card in known.values() for alias in card.aliases}
    return by_name.get(plain.casefold())


def made_name(state: NodeState, name: str) -> DerivedModel | None:
    """Return the derived model of exactly this name; None where there is none, or a model on a
    disk goes by it."""
    derived = state.derived_for(name)
    return derived if derived is not None and derived.name == plain_name(name) else None


def forget(invocation: Invocation, names: Iterable[DerivedModel]) -> None:
    """Have names stand for nothing, and say so."""
    api = invocation.api()
    for name in names:
        api.delete("/api/delete", {"model": name.name})
        invocation.output.say(f"deleted the alias {name.name}; {name.base} stays")
