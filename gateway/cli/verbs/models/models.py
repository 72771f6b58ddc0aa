"""Talks to the node's API about models on disk: `shoal ls`, `shoal show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.models.cards import resolved
from bus.models.gguf import ABILITIES, ENGINE, engine_of
from bus.process.clock import wall
from bus.wire.cards import ModelCard, PartialModel, PassedOver, parts_text
from bus.wire.instances import Instance
from bus.wire.kv import held_bytes, window_bytes, window_of
from bus.wire.messages.derived import DerivedModel
from gateway.cli.command import Invocation
from gateway.cli.node.node_state import NodeState
from gateway.cli.output.amounts import number, size, span
from gateway.cli.output.sensors import shares_text
from gateway.cli.verbs.models.instances import ModelName
from gateway.cli.verbs.models.setting_rows import rows as settings_rows
from gateway.cli.verbs.store.storage import show_stores


def ls(invocation: Invocation) -> None:
    """List the models on disk, including partial ones."""
    state = invocation.state()
    output = invocation.output
    models = list(state.models.values())
    output.document(
        {
            "models": [_fields(model, state) for model in models],
            "adapters": [
                {"model": f"{model.model}:{own.name}", **own.model_dump(mode="json")}
                for model in models
                for own in model.adapters
            ],
            "parts": [{"node": node, **part.model_dump(mode="json")} for node, part in state.parts],
            "derived": [model.model_dump(mode="json") for model in state.derived],
            "passed_over": [
                {"node": node, **entry.model_dump(mode="json")} for node, entry in state.passed_over
            ],
            "passed_over_not_told": state.unlisted_count,
            "storage": [reading.model_dump(mode="json") for reading in state.storage],
        }
    )
    rows = [row for model in models for row in _rows(model, state)]
    rows += [part_row(node, part) for node, part in state.parts]
    rows += [_derived_row(state, derived) for derived in state.derived]
    columns = (
        "model",
        "family",
        "makes",
        ">parameters",
        "quantised",
        ">size",
        ">context",
        "from",
        "used",
        "loaded on",
        "loads in",
    )
    output.table(columns, rows)
    for node, entry in state.passed_over:
        output.note(f"{_word(entry)}: {entry.path} on {node}: {entry.why}; {entry.remedy}")
    if state.unlisted_count:
        output.note(f"and {state.unlisted_count} more entries that are not models")
    show_stores(state, output)
    if not models:
        output.note(
            "no models yet; download one with `shoal pull`, or put its folder into "
            "<data>/models (`shoal config show`)"
        )


def show(invocation: Invocation, model: ModelName) -> None:
    """Show a model's files, memory and settings, and where it is loaded."""
    state = invocation.state()
    output = invocation.output
    card, derived = state.answering(model), state.derived_for(model)
    loaded = [instance for instance in state.instances if instance.model == card.model]
    fields = _fields(card, state)
    settings = {name: {"value": v, "source": source} for name, v, source, _ in resolved(card)}
    instances = [instance.model_dump(mode="json") for instance in loaded]
    runner_facts = _runner_facts(state, loaded)
    made = None if derived is None else derived.model_dump(mode="json")
    output.document(
        {
            **fields,
            "settings": settings,
            "instances": instances,
            "derived": made,
            "found": runner_facts,
        }
    )
    rows = [] if derived is None else [("name", f"{derived.name}, {stands_for(derived)}")]
    rows += [
        ("model", card.model),
        ("family", card.family),
        ("engine", engine_of(card)),
        ("parameters", number(card.parameters)),
        ("layers", card.layers),
        ("vocabulary", card.vocabulary),
        ("quantised", card.quantization),
        ("made from", card.made_from or "-"),
        ("on disk", size(card.size_bytes)),
        ("in memory", f"{size(card.weights_bytes)} ({card.dtype})"),
        ("KV cache", _kv(card)),
        ("can", ", ".join(card.capabilities)),
        ("makes", f"vectors of {card.dimensions} numbers" if card.dimensions else card.makes),
        (
            "adapters",
            ", ".join(f"{adapter.name} (rank {adapter.rank})" for adapter in card.adapters) or "-",
        ),
        ("digest", card.digest or "-"),
        ("from", came_from(card, state.names)),
        ("folder", card.path),
        ("nodes", ", ".join(state.nodes_of(card.model)) or "-"),
        ("in part", parts_text(card.model, state.cards) or "-"),
        ("used", _ago(state.last_used_s(card.model))),
        ("changed", _ago(card.modified_at_s)),
        ("loads in", loads_in(card.model, state)),
        ("writes", speeds_in(card.model, state)),
    ]
    rows += _abilities(card)
    rows += settings_rows(card)
    rows += runner_facts.items()
    rows += [
        ("failed", f"{instance.instance}: {instance.reason}")
        if instance.status == "failed"
        else ("loaded", f"{instance.instance} ({instance.status})")
        for instance in loaded
    ]
    rows += [
        ("on GPUs", f"{instance.instance}: {shares_text(shard.devices)}")
        for instance in loaded
        for shard in instance.shards
        if shard.devices and instance.status != "failed"
    ]
    rows += [
        (_word(entry), f"{entry.path} on {node}: {entry.why}; {entry.remedy}")
        for node, entry in state.passed_over
        if entry.taken and entry.name in (card.model, card.folder_name)
    ]
    output.table(("", ""), rows)


def _runner_facts(state: NodeState, loaded: Sequence[Instance]) -> dict[str, str]:
    """Return what a runner learned from the model's files, as texts by name; empty before the
    model's first load."""
    readings = map(state.reading_of, loaded)
    facts = [reading.found for reading in readings if reading is not None and reading.found]
    return facts[0] if facts else {}


def _rows(card: ModelCard, state: NodeState) -> list[tuple[Any, ...]]:
    """Return the rows of a model and of its adapters."""
    first = (
        card.model,
        card.family,
        card.makes,
        number(card.parameters),
        card.quantization + (" (GGUF)" if engine_of(card) == ENGINE else ""),
        size(card.size_bytes),
        card.context_tokens,
        came_from(card, state.names),
        _ago(state.last_used_s(card.model)),
        ", ".join(state.loaded_on(card.model)) or "-",
        loads_in(card.model, state),
    )
    return [
        first,
        *(
            (
                f"{card.model}:{adapter.name}",
                f"LoRA, rank {adapter.rank}",
                card.makes,
                "-",
                "-",
                size(adapter.size_bytes),
                card.context_tokens,
                f"in the folder of {card.model}",
                "-",
                "-",
                "-",
            )
            for adapter in card.adapters
        ),
    ]


def part_row(node: str, part: PartialModel) -> tuple[Any, ...]:
    """Return the row of a partially downloaded model: layers, node and bytes."""
    sizes = f"{size(part.have_bytes)} of {size(part.size_bytes)}"
    where = f"{part.text} on {node}"
    return (part.model, "partly", "-", "-", "-", sizes, "-", where, "-", "-", "-")


def loads_in(model: str, state: NodeState) -> str:
    """Return how long the last load took on each node, as text; "-" if unknown."""
    times = [(name, card.load_s) for name, card in _cards_of(model, state) if card.load_s]
    return ", ".join(f"{seconds:.1f} s on {name}" for name, seconds in times) or "-"


def speeds_in(model: str, state: NodeState) -> str:
    """Return the measured speed of one answer on each node, as text; "-" if unknown."""
    cards = [(name, card) for name, card in _cards_of(model, state) if card.tokens_per_s]
    return ", ".join(f"{card.tokens_per_s:.3g} tokens/s on {name}" for name, card in cards) or "-"


def _cards_of(model: str, state: NodeState) -> list[tuple[str, ModelCard]]:
    """Return each node that has a model, by name, with its card of the model."""
    return [(node.name, m) for node in state.cards for m in node.models if m.model == model]


def came_from(card: ModelCard, names: Mapping[str, str]) -> str:
    """Return the origin of a model's folder as text. `names` maps node id to node name."""
    whence = ", ".join(names.get(source, source) for source in card.sources)
    match card.origin:
        case "bundled":
            return "shoal itself"
        case "put":
            return "added by the user"
        case "cache":
            return "Hugging Face's cache"
        case "copied":
            return f"copied from {whence or 'other nodes'}"
        case "pulled":
            return f"pulled from {whence or 'the hub'}"
        case "derived":
            return f"made from {whence or 'another model'}"
        case "engine":
            return "a program of engines.toml"


def _abilities(card: ModelCard) -> list[tuple[str, str]]:
    """Return rows about what the engine of a GGUF model that generates text does and refuses; none
    for other models."""
    if engine_of(card) != ENGINE or card.makes != "text":
        return []
    done = [each.name + (f" ({each.note})" if each.note else "") for each in ABILITIES if each.done]
    refused = [f"{each.name} ({each.field})" for each in ABILITIES if not each.done]
    return [("does", "; ".join(done)), ("refuses", "; ".join(refused))]


def _fields(card: ModelCard, state: NodeState) -> dict[str, Any]:
    model = card.model
    more = {"nodes": state.nodes_of(model), "loaded_on": state.loaded_on(model)}
    used = {"last_used_at_s": state.last_used_s(model)}
    return {**card.model_dump(mode="json"), "engine": engine_of(card), **more, **used}


def _kv(card: ModelCard) -> str:
    """Return the KV cache's bytes per token, and its format if that is not full precision."""
    grows = card.kv_bytes_per_token
    if window_of(card.kv):
        row = window_bytes(grows, card.kv, card.context_tokens)
        return f"at most {size(row)} per row ({card.kv}; {size(grows)} per token in full precision)"
    held = held_bytes(grows, card.kv, card.kv_value_bytes, card.kv_group)
    if card.kv != "full":
        return f"{size(held)} per token ({card.kv}; {size(grows)} in full precision)"
    stays = f"; always in full precision: {card.kv_full_because}" if card.kv_full_because else ""
    return f"{size(grows)} per token{stays}"


def _ago(at_s: float) -> str:
    return f"{span(max(0.0, wall() - at_s))} ago" if at_s else "-"


def _word(entry: PassedOver) -> str:
    """Return the kind of an ignored entry, for people."""
    if entry.reason == "odd_name":
        return "has another name"
    return "usable except for this" if entry.taken else "not a model"


def stands_for(model: DerivedModel) -> str:
    """Return the description of a derived model, for people."""
    whose = (
        f"an alias of {model.base}:{model.adapter}"
        if model.adapter
        else f"an alias of {model.base}"
    )
    plain = DerivedModel(name=model.name, base=model.base, adapter=model.adapter)
    unlisted = {"parent": "", "made_at_s": 0.0, "license": ""}
    added = [
        *(["a system prompt"] if model.system else []),
        *(["a Go template, which shoal does not run"] if model.template else []),
        *([f"{len(model.turns)} turns"] if model.turns else []),
        *(f"{name} {value}" for name, value in model.parameters.items()),
    ]
    if model.model_copy(update=unlisted) == plain:
        return whose
    return f"{whose}, with {', '.join(added) or 'defaults of its own'}"


def _derived_row(state: NodeState, model: DerivedModel) -> tuple[Any, ...]:
    lost = "" if model.base in state.models else "; that model is on no disk"
    loaded = ", ".join(state.loaded_on(model.base)) or "-"
    return (
        model.name,
        "-",
        "-",
        "-",
        "-",
        "-",
        "-",
        f"{stands_for(model)}{lost}",
        "-",
        loaded,
        "-",
    )
