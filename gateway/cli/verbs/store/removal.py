"""Talks to the node and its disk: `shoal rm` deletes models from this node or from all nodes.

All models are checked before any is deleted. A model that the user added to the disk is deleted
only after a further confirmation. If the name is an alias, only the alias is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from bus.models.held_models import FolderKept, why_held
from bus.models.model_folders import (
    cached_repository,
    delete_aside,
    delete_cached,
    own_folder,
    put_aside,
    put_back,
)
from bus.wire.cards import PartialModel, pulls_in_part
from bus.wire.messages.derived import DerivedModel
from gateway.cli.command import Invocation
from gateway.cli.node.node_state import NodeState, adapter_named
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.store.naming import forget, made_name, model_with_alias

FETCHED = ("copied", "pulled", "derived")
"""Origins of models that can be downloaded or made again."""
EVERYWHERE_S = 60.0
Names = Annotated[
    list[str], typer.Argument(metavar="MODEL...", help="Models, as listed by `shoal ls`.")
]


@dataclass(frozen=True, slots=True)
class _Doomed:
    """A model to delete on this node. `cached`: its `folder` is in Hugging Face's cache."""

    model: str
    folder: Path
    size_bytes: int
    fetched: bool
    cached: bool = False


def rm(
    invocation: Invocation,
    models: Names,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Delete the models on all nodes.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete models, or parts of them, from this node's disk. Unload them first. An alias that
    `shoal cp` made is deleted on every node; its model stays."""
    state, output = invocation.state(), invocation.output
    names = {name: alias for name in models if (alias := made_name(state, name)) is not None}
    models = [name for name in dict.fromkeys(models) if name not in names]
    if everywhere:
        _everywhere(invocation, state, models, list(names.values()), yes=yes)
        return
    root = invocation.settings().paths.models
    doomed = [item for name in models for item in _doomed(state, name, root)]
    if added := [item for item in doomed if not item.fetched]:
        listed = ", ".join(f"{item.folder} ({size(item.size_bytes)})" for item in added)
        _confirm(output, listed, yes=yes)
    for item in doomed:
        try:
            if item.cached:
                delete_cached(item.folder)
            else:
                _delete(invocation, item, root)
        except FolderKept as error:
            raise CliError(error.message, remedy=error.remedy) from error
        output.say(f"deleted {item.model} ({size(item.size_bytes)})")
    forget(invocation, names.values())
    output.document({"deleted": [_fields(item) for item in doomed], "names": list(names)})
    if doomed:
        output.note("the node notices it within 2 s")


def _delete(invocation: Invocation, item: _Doomed, root: Path) -> None:
    """Delete a folder. If an instance of its model was placed meanwhile, move the folder back.
    Raises CliError, FolderKept."""
    aside = put_aside(item.folder, root)
    try:
        _check_unheld(invocation.state(), item.model)
    except CliError:
        put_back(aside, item.folder)
        raise
    delete_aside(aside, item.folder, root)


def _confirm(output: Output, what: str, *, yes: bool) -> None:
    """Ask for confirmation. Raises CliError without a terminal."""
    if yes:
        return
    if output.as_json or not output.err.is_terminal:
        raise CliError(f"this deletes {what}", remedy="confirm with --yes")
    typer.confirm(f"Delete {what}?", abort=True, err=True)


def _doomed(state: NodeState, name: str, root: Path) -> Iterator[_Doomed]:
    """Yield the folders to delete on this node: the model, complete or in part, and its unfinished
    pulls. Raises CliError for a model that must stay."""
    _check_own_name(state, name)
    begun = [pull for card in state.here for pull in pulls_in_part(card, name)]
    if begun:
        _check_unheld(state, name)
    for pull in begun:
        folder = _own(Path(pull.path), root)
        yield _Doomed(name, folder, _disk_bytes(folder), fetched=True)
    if begun and not state.lies_here(name):
        return
    card = state.on_disk(name)
    if not isinstance(card, PartialModel) and card.bundled:
        raise CliError(
            f"{card.model} is part of shoal and cannot be deleted",
            remedy="that model takes at most 10 MB",
        )
    _check_unheld(state, card.model)
    if isinstance(card, PartialModel):
        yield _Doomed(card.model, _own(Path(card.path), root), card.have_bytes, fetched=True)
    elif card.origin == "cache" and (repository := cached_repository(Path(card.path))):
        yield _Doomed(card.model, repository, card.size_bytes, fetched=False, cached=True)
    else:
        folder = _own(Path(card.path), root)
        yield _Doomed(card.model, folder, card.size_bytes, card.origin in FETCHED)


def _disk_bytes(folder: Path) -> int:
    """Return the disk space of a folder's files."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def _check_own_name(state: NodeState, name: str) -> None:
    """Raise CliError for the name of an adapter and for an alias in a model's card, because `shoal
    rm` deletes neither."""
    if (card := model_with_alias(state, name)) is not None:
        remedy = (
            f"remove it from `aliases` (`shoal card edit {card.model}`), or use the model's name"
        )
        raise CliError(f"{name} is an alias in the card of {card.model}", remedy=remedy)
    if name not in state.models and (beside := adapter_named(state, name)) is not None:
        card, adapter = beside
        remedy = f"delete the folder adapters/{adapter} in the model's folder on its nodes"
        raise CliError(f"{adapter} is an adapter of {card.model}, not a model", remedy=remedy)


def _check_unheld(state: NodeState, model: str) -> None:
    """Raise CliError for a model that is loaded, is being loaded, or is being transferred."""
    reason = why_held(model, state.instances, state.weights, state.pulls, state.names)
    if reason is not None:
        raise CliError(reason.message, remedy=reason.remedy)


def _own(folder: Path, models: Path) -> Path:
    try:
        return own_folder(folder, models)
    except FolderKept as error:
        raise CliError(error.message, remedy=error.remedy) from error


def _everywhere(
    invocation: Invocation,
    state: NodeState,
    models: list[str],
    names: list[DerivedModel],
    *,
    yes: bool,
) -> None:
    """Delete models from all nodes. Raises CliError if a node kept a model."""
    output, api = invocation.output, invocation.api()
    full_names = [_anywhere(state, name) for name in models]
    for model in full_names:
        _check_unheld(state, model)
    put = [model for model in full_names if _is_put_anywhere(state, model)]
    if put:
        listed = "; ".join(f"{name} on {', '.join(_nodes_with(state, name))}" for name in put)
        _confirm(output, listed, yes=yes)
    answers: list[dict[str, Any]] = []
    for model in full_names:
        path = f"/store/models/{quote(model, safe='/:')}"
        answers.append(api.delete(path, timeout_s=EVERYWHERE_S))
        for node in answers[-1]["nodes"]:
            what = f"{model} on {node['name']}"
            if node["deleted"]:
                output.say(f"deleted {what} ({size(node['size_bytes'])})")
            else:
                output.say(f"kept {what}: {node['why']}")
    forget(invocation, names)
    output.document({"models": answers, "names": [alias.name for alias in names]})
    remaining = [node for answer in answers for node in answer["nodes"] if not node["deleted"]]
    if remaining:
        text = f"{len(remaining)} copies were not deleted"
        raise CliError(text, remedy="see the reasons above; list the rest with `shoal ls`")


def _anywhere(state: NodeState, name: str) -> str:
    """Return the full name of a model that some node has, complete or in part. Raises CliError if
    none has it."""
    _check_own_name(state, name)
    has_some = any(part.model == name for _, part in state.parts)
    has_some = has_some or any(pulls_in_part(card, name) for card in state.cards)
    return name if has_some else state.find_model(name).model


def _nodes_with(state: NodeState, model: str) -> list[str]:
    return sorted({*state.nodes_of(model), *(n for n, part in state.parts if part.model == model)})


def _is_put_anywhere(state: NodeState, model: str) -> bool:
    cards = (card for node in state.cards for card in node.models if card.model == model)
    return any(card.origin not in FETCHED for card in cards)


def _fields(item: _Doomed) -> dict[str, Any]:
    return {"model": item.model, "folder": str(item.folder), "bytes": item.size_bytes}
