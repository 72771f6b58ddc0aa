"""Node cards: the abilities of a node, and the model cards of the models on its disk.

Pure. A node card is a retained reading; the newer card of a node wins (`bus.membership.card_book`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from pydantic import Field

from bus.wire.accelerators import Device
from bus.wire.ids import ModelId, NodeId, sayable
from bus.wire.kv import KvKind
from bus.wire.messages.derived import DerivedModel, plain_name
from bus.wire.messages.requests import DraftWeights, ModelKind, Speculate
from bus.wire.messages.wire import Message
from bus.wire.topology import NodeAddress, RdmaPort

ModelOrigin = Literal["bundled", "put", "cache", "copied", "pulled", "derived", "engine"]
"""The origin of a model's folder. `bundled`: part of shoal; `put`: added by the user; `cache`: a
Hugging Face cache; `copied`: from other nodes; `pulled`: from the hub; `derived`: made on this node
from another model. With `engine` there is no folder, but a program of `engines.toml`.
"""
PassedOverReason = Literal[
    "gguf", "pickled", "other_weights", "adapter_alone", "adapter_beside", "bad_adapter",
    "no_config",
    "bad_config", "no_weights", "bad_weights", "cut", "missing_shards", "lfs_pointer", "dead_link",
    "no_tokenizer", "media", "unknown_family", "image_model", "unfinished", "still_written",
    "pulled_in_part", "being_pulled", "packed", "alone", "stray", "empty", "nothing_known",
    "too_deep", "too_many", "same_name", "odd_name", "unreadable", "bad_card", "no_effect",
    "alias_taken",
]  # fmt: skip
"""Why a file or folder among the models is not a model, or has no effect. The worker has a text for
each reason (`worker.models.passed_over`)."""
_FROM_CARD_FILE = ("aliases", "defaults", "card_at_s", "noted", "pin", "prefill_on")
_FROM_ORIGIN = ("origin", "sources")
NAME_CHARACTERS, PATH_CHARACTERS, WORDS_CHARACTERS = 200, 600, 700
"""Maximum lengths of the texts of a `PassedOver`."""


class AdapterCard(Message):
    """A LoRA adapter beside a model; requests name it as `MODEL:NAME`. `rank`: the largest rank of
    its layers. `size_bytes`: its size on disk. `digest`: a hash of its configuration and of the
    beginning of its weights."""

    name: str
    rank: int
    size_bytes: int
    digest: str = ""
    modified_at_s: int = 0


class ModelCard(Message):
    """One model on disk, with the figures that placement needs before it is loaded.

    `weights_bytes`: its weights in memory (after the cast to `dtype`), with all `adapters` beside
    it, which are loaded with the model. `kv_bytes_per_token`: KV cache of the whole model per
    token; `kv_bytes_fixed`: per row. `size_bytes`: on disk.

    Its parts, for a split over several nodes: `layer_bytes`: the weights of each layer.
    `layer_active_bytes`: the part of them that one token reads (a mixture-of-experts model reads
    only some of its experts). `layer_kv` and `layer_kv_fixed`: KV cache by layer, per token and per
    row. `embedding_bytes` belong to the first layers. `head_bytes` belong to the last ones: final
    norm and output projection, which may be the embedding again. An empty list: unknown, so layers
    count as equal. `activation_bytes`: sent between layers for one token.

    `kv`: the default format of the part of the KV cache that grows with the tokens; the byte counts
    of the card are for full width. A value of full width has `kv_value_bytes` bytes. When
    quantized, `kv_group` values share a scale; 0: they stay in full width, for the reason in
    `kv_full_because`. Then windows are impossible, too, unless `kv_windows`.

    `tensor_sizes`: sizes, by name, that a tensor-parallel degree must divide; empty: models of this
    family cannot be sharded. `tensor_splits_kv`: the KV cache is divided between the ranks, too.
    `unsplit_because`: why the family can't be a pipeline. `fetched_in_parts`: a stage of a pipeline
    fetches only its own layers. `compatible_backends` (empty: any) and `backend_preference` (best
    first) are `<engine>-<compute>` tags.

    `makes`: text, vectors, or scores of documents. An embedding model or a reranker has no KV
    cache, runs on one rank, and takes `context_tokens` of each input. Vectors have `dimensions`
    numbers by default. A request may choose one of `dimension_choices`, or any size up to
    `dimensions_at_most` (0: only the choices).

    `folder_name`: the folder's own name, if it is no valid model id and the model has another one.
    `sources`: the nodes, or the repository, that it came from. `last_used_at_s`: on this node, to
    the minute; 0: unknown. `aliases` and `defaults`: the request settings of its `card.toml`, which
    was written at `card_at_s`; the newest counts. `noted`: the keys of the `card.toml`. `pin`: the
    model stays in memory. `memory_bytes`: the memory of its weights by the `card.toml`; 0: not set.
    `metal_fast_synch`: the setting of this node's runners; `metal_fast_synch_by`: its source.
    `tool_parser` and `reasoning_parser`: the parsers of its output; empty: as its chat template
    says. `special_tokens_in_messages`: special tokens in the text of messages count as tokens, not
    as text. `speculate`: how tokens are drafted; None: as the runner's setting says. `draft`: its
    draft model. `prefill_on`: the node (id, name or `auto`) that computes long prompts for
    instances on other nodes; empty: none does. `made_from`: the model it was quantized from.
    `load_s`: the seconds of its last load here, with a new runner, and `tokens_per_s` the speed of
    one row of the whole model; 0: not measured. `gpus`: those over which its program of
    `engines.toml` divides its memory equally.
    """

    model: ModelId = Field(min_length=1)
    path: str
    family: str
    layers: int
    weights_bytes: int = Field(ge=0)
    size_bytes: int
    kv_bytes_per_token: int
    kv_bytes_fixed: int = 0
    context_tokens: int
    vocabulary: int
    quantization: str = "none"
    dtype: str = "float32"
    parameters: int = 0
    digest: str = ""
    modified_at_s: int = 0
    capabilities: tuple[str, ...] = ("completion",)
    keep_alive_s: float | None = None
    default_max_tokens: int | None = None
    thinking: bool = False
    bundled: bool = False
    layer_bytes: tuple[int, ...] = ()
    layer_active_bytes: tuple[int, ...] = ()
    layer_kv: tuple[int, ...] = ()
    layer_kv_fixed: tuple[int, ...] = ()
    embedding_bytes: int = 0
    head_bytes: int = 0
    activation_bytes: int = 0
    tensor_sizes: dict[str, int] = {}
    tensor_splits_kv: bool = True
    unsplit_because: str = ""
    fetched_in_parts: bool = False
    compatible_backends: tuple[str, ...] = ()
    backend_preference: tuple[str, ...] = ()
    makes: ModelKind = "text"
    dimensions: int = 0
    dimension_choices: tuple[int, ...] = ()
    dimensions_at_most: int = 0
    origin: ModelOrigin = "put"
    sources: tuple[str, ...] = ()
    folder_name: str = ""
    last_used_at_s: int = 0
    aliases: tuple[ModelId, ...] = ()
    defaults: DerivedModel | None = None
    card_at_s: float = 0.0
    noted: tuple[str, ...] = ()
    pin: bool = False
    memory_bytes: int = 0
    metal_fast_synch: bool = False
    metal_fast_synch_by: Literal["", "card", "node"] = ""
    tool_parser: str = ""
    reasoning_parser: str = ""
    special_tokens_in_messages: bool = False
    speculate: Speculate | None = None
    draft: DraftWeights | None = None
    prefill_on: str = ""
    made_from: str = ""
    load_s: float = Field(default=0.0, ge=0)
    tokens_per_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    adapters: tuple[AdapterCard, ...] = ()
    kv: KvKind = "full"
    kv_group: int = 0
    kv_value_bytes: int = 0
    kv_full_because: str = ""
    kv_windows: bool = False
    gpus: tuple[int, ...] = ()


class PartialModel(Message):
    """Some layers of a model on a node's disk: all layers in `layers`, a list of spans [first,
    last). `have_bytes` of the `size_bytes` of the model's files are on the disk. The node can serve
    these layers as a stage of a pipeline; other nodes can't copy them. `path`: the folder. `card`:
    the card of the whole model; None: unknown."""

    model: ModelId = Field(min_length=1)
    layers: tuple[tuple[int, int], ...]
    have_bytes: int
    size_bytes: int
    path: str = ""
    card: ModelCard | None = None

    def holds(self, first: int, last: int) -> bool:
        """Return whether this partial model has all layers [`first`, `last`)."""
        return covers(self.layers, first, last)

    @property
    def text(self) -> str:
        """Return the layers, from 0, as text: `layers 0 to 9 of 28`."""
        spans = ", ".join(f"{first} to {last - 1}" for first, last in self.layers)
        return f"layers {spans}" + ("" if self.card is None else f" of {self.card.layers}")


class PassedOver(Message):
    """A file or folder among the models that is not a model: `why` says why, with the remedy.
    `name`: the name that the model would have. `taken`: it is a model, but this part of its folder
    has no effect. `aliases`: the aliases in a refused `card.toml`, as far as they could be read;
    they have no effect."""

    name: str = Field(max_length=NAME_CHARACTERS)
    path: str = Field(max_length=PATH_CHARACTERS)
    why: str = Field(max_length=WORDS_CHARACTERS)
    remedy: str = Field(max_length=WORDS_CHARACTERS)
    taken: bool = False
    reason: PassedOverReason = "nothing_known"
    aliases: tuple[ModelId, ...] = ()


def models_of(nodes: Collection[NodeCard]) -> dict[ModelId, ModelCard]:
    """Return the models of these nodes by name. Each model has the card of the first node that
    lists it. But the settings come from the newest `card.toml` of all nodes, and the origin from a
    node that did not copy the model from another. A model that no node has completely is included
    if the nodes together have all of its layers."""
    models: dict[ModelId, ModelCard] = {}
    for node in nodes:
        for model in node.models:
            card = models.setdefault(model.model, model)
            newer = _FROM_CARD_FILE if model.card_at_s > card.card_at_s else ()
            is_first = card.origin == "copied" and model.origin != "copied"
            first = _FROM_ORIGIN if is_first else ()
            update = {name: getattr(model, name) for name in (*newer, *first)}
            if update:
                models[model.model] = card.model_copy(update=update)
    for name, card in joined_parts(nodes).items():
        models.setdefault(name, card)
    return models


def joined_parts(nodes: Iterable[NodeCard]) -> dict[ModelId, ModelCard]:
    """Return the models of which these nodes have only parts, but together all layers. Each model
    has the card of the first part. Parts with different files do not count together."""
    first: dict[tuple[ModelId, str], ModelCard] = {}
    spans: dict[tuple[ModelId, str], list[tuple[int, int]]] = {}
    for part in (part for node in nodes for part in node.parts):
        if part.card is not None:
            key = (part.model, part.card.digest)
            first.setdefault(key, part.card)
            spans.setdefault(key, []).extend(part.layers)
    whole = (key for key, card in first.items() if covers(spans[key], 0, card.layers))
    return {key[0]: first[key] for key in whole}


def parts_text(model: ModelId, nodes: Iterable[NodeCard]) -> str:
    """Return which nodes have which layers of a model, as text; empty if no node has only some."""
    held = [(node.name, part) for node in nodes for part in node.parts if part.model == model]
    return ", ".join(f"{name} holds {part.text}" for name, part in held)


def passed_over_named(
    name: str, passed_over: Iterable[tuple[str, PassedOver]]
) -> tuple[str, PassedOver] | None:
    """Return the file or folder that a client may mean by `name` although it is not a usable model,
    with its node; None if there is none. A file matches with or without its last suffix; a folder
    also by the model id made from its name. If none matches, `name` may be an alias in a refused
    `card.toml`."""
    wanted = name.casefold().removesuffix(":latest")
    meant: tuple[str, PassedOver] | None = None
    for node, entry in passed_over:
        names = short_names(entry.name) | short_names(sayable(entry.name))
        if not entry.taken and wanted in names | {text.rpartition(".")[0] for text in names}:
            return node, entry
        if meant is None and wanted in (alias.casefold() for alias in entry.aliases):
            meant = node, entry
    return meant


def not_in_force(entry: PassedOver, node: str) -> str:
    """Return the message for a client that used an alias of a refused `card.toml`: why the alias
    has no effect."""
    place = f"{entry.path} on {node}"
    return f"the card that gives {entry.name} this name has no effect ({place}): {entry.why}"


def pulls_in_part(card: NodeCard, model: str) -> list[PassedOver]:
    """Return the unfinished pulls of this model to this node, running or interrupted."""
    reasons = ("pulled_in_part", "being_pulled")
    return [entry for entry in card.passed_over if entry.name == model and entry.reason in reasons]


def short_names(model: str) -> set[str]:
    """Return the names of a model in lower case: with and without its owner."""
    whole = model.casefold().removesuffix(":latest")
    return {whole, whole.rpartition("/")[2]}


def model_named(name: str, names: Collection[ModelId]) -> ModelId | None:
    """Return the model that a client means by `name`: the full name, or the name without its owner;
    upper and lower case may differ. None if no model or more than one has that name."""
    if ModelId(name) in names:
        return ModelId(name)
    plain = plain_name(name)
    if ModelId(plain) in names:
        return ModelId(plain)
    folded = plain.casefold()
    ends = {model for model in names if short_names(model) & {folded}}
    return next(iter(ends)) if len(ends) == 1 else None


def covers(spans: Iterable[tuple[int, int]], first: int, last: int) -> bool:
    """Return whether each of the layers [`first`, `last`) is in one of the spans."""
    ranges = tuple(spans)
    return all(any(a <= layer < b for a, b in ranges) for layer in range(first, last))


class NodeCard(Message):
    """A node's announcement of itself. It expires when more than `ttl_s` seconds have passed;
    `ttl_s` > 0. Empty fields: unknown.

    `chip`: the processor's name. `working_set_bytes`: how much memory the GPU of a Mac may wire, by
    its operator's limit, else by Metal's (0: neither is known). `devices`: its GPUs. `vram_bytes`:
    memory of the first NVIDIA GPU; it counts only if `devices` is empty, as in older cards, and so
    does `gtt_bytes`. `memory_bytes_per_s`: what one thread of its processor reads; 0: not
    measured, so the leader assumes a figure. `machine`: the same for all nodes of one machine.
    `rdma`: the device whose active port leads to each peer, by node id; `rdma_ports`: the ports of
    all devices. `os_version`: the system and its version. `launched_by`: the launcher of the node
    (`shoal up`, `systemd`, `launchd`, ...). `tree`: the fingerprint of the running code, the same
    for equal files.

    `weights_addresses`: where its worker offers the files of `models` to other nodes, best first;
    empty: it offers none. `parts`: models of which it has only some layers. `passed_over`: files
    and folders that are no models, the first hundred of `passed_over_count`. `cannot_run`: why no
    runner can compute on this node (MLX is not installed), and the remedy; else empty.
    """

    node: NodeId = Field(min_length=1)
    name: str
    platform: str
    cores: int
    memory_bytes: int = Field(ge=0)
    backends: tuple[str, ...]
    mlx_version: str
    shoal_version: str
    tree: str = ""
    slots: int
    models: tuple[ModelCard, ...] = ()
    parts: tuple[PartialModel, ...] = ()
    weights_addresses: tuple[str, ...] = ()
    announced_at_s: float = Field(allow_inf_nan=False)
    ttl_s: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    chip: str = ""
    working_set_bytes: int = 0
    vram_bytes: int = 0
    gtt_bytes: int = 0
    memory_bytes_per_s: float = 0.0
    machine: str = ""
    ips: tuple[NodeAddress, ...] = ()
    rdma: dict[str, str] = {}
    os_version: str = ""
    python_version: str = ""
    mlx_lm_version: str = ""
    launched_by: str = ""
    rdma_ports: tuple[RdmaPort, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    passed_over_count: int = 0
    cannot_run: str = ""
    devices: tuple[Device, ...] = ()


AHEAD_S = 60.0
"""How many seconds a node's clock may be ahead of ours."""


def as_received(card: NodeCard, wall_s: float) -> NodeCard:
    """Return a node's card as this node accepts it at `wall_s`. A time stamp further ahead than
    `AHEAD_S` is reduced to that, so that it hides the node's later cards for at most that long. The
    order of a node's cards stays the same, however wrong its clock is."""
    at_s = min(card.announced_at_s, wall_s + AHEAD_S)
    return card if at_s == card.announced_at_s else card.model_copy(update={"announced_at_s": at_s})
