"""Talks to the node and its disk: `shoal ls`, `show`, `rm`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bus.process.clock import wall
from bus.wire.cards import AdapterCard, ModelCard, PartialModel
from gateway.cli.command import Invocation
from gateway.cli.node.node_state import NodeState
from gateway.cli.output.amounts import size, span
from gateway.cli.output.errors import CliError
from gateway.cli.verbs.models.instances import ModelName
from gateway.model_folders import FolderKept, delete_folder, own_folder


def ls(invocation: Invocation) -> None:
    """List the models on disk, and those of which a node has some layers only."""
    state = invocation.state()
    output = invocation.output
    models = list(state.models.values())
    output.document(
        {
            "models": [_fields(one, state.nodes_of(one.model)) for one in models],
            "adapters": [
                {"model": f"{one.model}:{own.name}", **own.model_dump(mode="json")}
                for one in models
                for own in one.adapters
            ],
            "parts": [{"node": node, **part.model_dump(mode="json")} for node, part in state.parts],
            "passed_over": [
                {"node": node, **one.model_dump(mode="json")} for node, one in state.passed_over
            ],
        }
    )
    rows = [row for one in models for row in _rows(one, loads_in(one.model, state))]
    rows += [part_row(node, part) for node, part in state.parts]
    columns = (
        "model",
        "family",
        "makes",
        ">parameters",
        "quantised",
        ">size",
        ">context",
        "changed",
        "loads in",
    )
    output.table(columns, rows)
    for node, one in state.passed_over:
        taken = "taken but for this" if one.taken else "not taken"
        output.note(f"{taken}: {one.path} on {node}: {one.why}; {one.remedy}")
    if not models:
        output.note("no models yet: put a model's folder into <data>/models (`shoal config show`)")


def show(invocation: Invocation, model: ModelName) -> None:
    """Show what is known of a model, and where it is loaded."""
    state = invocation.state()
    output = invocation.output
    base, _, tag = model.rpartition(":")
    adapted = base in state.models and any(tag == one.name for one in state.models[base].adapters)
    card = state.find_model(base if adapted and model not in state.models else model)
    loaded = [one for one in state.instances if one.model == card.model]
    found = _fields(card, state.nodes_of(card.model))
    output.document({**found, "instances": [one.model_dump(mode="json") for one in loaded]})
    rows = [
        ("model", card.model),
        ("family", card.family),
        ("parameters", _count(card.parameters)),
        ("layers", card.layers),
        ("vocabulary", card.vocabulary),
        ("context", f"{card.context_tokens} tokens"),
        ("quantised", card.quantization),
        ("made from", card.made_from or "-"),
        ("on disk", size(card.size_bytes)),
        ("in memory", f"{size(card.weights_bytes)} ({card.dtype})"),
        ("KV cache", f"{size(card.kv_bytes_per_token)} a token"),
        ("can", ", ".join(card.capabilities)),
        ("makes", f"vectors of {card.dimensions} numbers" if card.dimensions else card.makes),
        ("adapters", ", ".join(f"{one.name} (rank {one.rank})" for one in card.adapters) or "-"),
        ("digest", card.digest or "-"),
        ("folder", card.path),
        ("nodes", ", ".join(state.nodes_of(card.model))),
        ("loads in", loads_in(card.model, state)),
    ]
    rows += [
        ("failed", f"{one.instance}: {one.reason}")
        if one.status == "failed"
        else ("loaded", f"{one.instance} ({one.status})")
        for one in loaded
    ]
    output.table(("", ""), rows)


def rm(
    invocation: Invocation,
    model: ModelName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a model, or the part of one, from this node's disk. It has to be unloaded first."""
    settings, output = invocation.settings(), invocation.output
    state = invocation.state()
    card = state.on_disk(model)
    if isinstance(card, ModelCard) and card.bundled:
        raise CliError(f"{card.model} comes with shoal and stays", remedy="it takes 10 MB at most")
    mine = (one for one in state.instances if one.model == card.model)
    held = [one.instance for one in mine if one.status != "failed"]
    if held:
        raise CliError(
            f"{card.model} is loaded ({', '.join(held)})",
            remedy=f"`shoal stop {card.model}` unloads it",
        )
    folder = _own(Path(card.path), settings.paths.models)
    bytes_ = card.size_bytes if isinstance(card, ModelCard) else card.have_bytes
    if not yes:
        if output.as_json or not output.err.is_terminal:
            raise CliError(f"{folder} would be deleted", remedy="say so with --yes")
        typer.confirm(f"Delete {folder} ({size(bytes_)})?", abort=True, err=True)
    try:
        delete_folder(folder, settings.paths.models)
    except FolderKept as error:
        raise CliError(error.message, remedy=error.remedy) from error
    output.document({"model": card.model, "deleted": str(folder), "bytes": bytes_})
    output.say(f"deleted {card.model} ({size(bytes_)})")
    output.note("the node notices within half a minute")


def _rows(card: ModelCard, loads: str) -> list[tuple[Any, ...]]:
    """Return the lines of a model and of its adapters."""
    made_from = f" of {card.made_from}" if card.made_from else ""
    plain = (card.makes, _count(card.parameters), f"{card.quantization}{made_from}")
    first = (
        card.model,
        card.family,
        *plain,
        size(card.size_bytes),
        card.context_tokens,
        _age(card),
        loads,
    )
    return [
        first,
        *(
            (
                f"{card.model}:{one.name}",
                f"LoRA, rank {one.rank}",
                card.makes,
                "-",
                "-",
                size(one.size_bytes),
                card.context_tokens,
                _age(one),
                "-",
            )
            for one in card.adapters
        ),
    ]


def part_row(node: str, part: PartialModel) -> tuple[Any, ...]:
    """Return a line of `shoal ls` about some layers of a model: which, where, how many bytes."""
    spans = ", ".join(f"{first} to {last - 1}" for first, last in part.layers)
    sizes = f"{size(part.have_bytes)} of {size(part.size_bytes)}"
    return (part.model, "in part", "-", "-", "-", sizes, "-", f"layers {spans} on {node}", "-")


def loads_in(model: str, state: NodeState) -> str:
    """Return how long the last load took on each node, for people; "-" where none is known."""
    times = [
        (node.name, one.load_s)
        for node in state.cards
        for one in node.models
        if one.model == model and one.load_s
    ]
    return ", ".join(f"{seconds:.1f} s on {name}" for name, seconds in times) or "-"


def _own(folder: Path, models: Path) -> Path:
    try:
        return own_folder(folder, models)
    except FolderKept as error:
        raise CliError(error.message, remedy=error.remedy) from error


def _fields(card: ModelCard, nodes: list[str]) -> dict[str, Any]:
    return {**card.model_dump(mode="json"), "nodes": nodes}


def _count(parameters: int) -> str:
    for unit, factor in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if parameters >= factor:
            return f"{parameters / factor:.1f}{unit}"
    return "-"


def _age(card: ModelCard | AdapterCard) -> str:
    return f"{span(max(0.0, wall() - card.modified_at_s))} ago" if card.modified_at_s else "-"
