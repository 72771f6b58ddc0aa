"""Talks to the node's API about aliases: `shoal cp` creates one, `shoal rm` deletes it.

An alias is a derived model without changes of its own. It is part of the cluster's state, so every
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
    if use := use_of(state, plain_name(name)):
        raise CliError(f"{name} is {use}", remedy="choose another name")
    api.post("/api/copy", {"source": source, "destination": name})
    output.document({"name": plain_name(name), "source": source, "model": model})
    output.say(f"{plain_name(name)} is now an alias of {model} on every node")


def use_of(state: NodeState, name: str) -> str | None:
    """Return what already has this name, for people; None if the name is free."""
    names = {ModelId(model) for model in state.models}
    if (model := model_named(name, names)) is not None:
        return f"the name of {model}, which is on disk"
    if (derived := derived_named(name, state.state.derived)) is not None:
        return f"already an alias of {derived.base} (delete it with `shoal rm {derived.name}`)"
    if (card := model_with_alias(state, name)) is not None:
        return f"an alias in the card of {card.model}"
    beside = adapter_named(state, name)
    return None if beside is None else f"{beside[0].model} with one of its adapters"


def model_with_alias(state: NodeState, name: str) -> ModelCard | None:
    """Return the model whose card has this alias. Returns None if no card has it, or if a model on
    disk has the name."""
    plain, models = plain_name(name), state.models
    if plain in models:
        return None
    by_name = {alias.casefold(): card for card in models.values() for alias in card.aliases}
    return by_name.get(plain.casefold())


def made_name(state: NodeState, name: str) -> DerivedModel | None:
    """Return the derived model with exactly this name. Returns None if there is none, or if a model
    on disk has the name."""
    derived = state.derived_for(name)
    return derived if derived is not None and derived.name == plain_name(name) else None


def forget(invocation: Invocation, names: Iterable[DerivedModel]) -> None:
    """Delete aliases on every node, and report each deletion."""
    api = invocation.api()
    for name in names:
        api.delete("/api/delete", {"model": name.name})
        invocation.output.say(f"deleted the alias {name.name}; {name.base} stays")
