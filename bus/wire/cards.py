"""Capability cards: what a node can do, and which models lie on its disk.

Pure. A card is a retained reading. The newer one of two wins. Of two with one stamp the same one
wins on every node and in any order (`supersedes`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Literal

from pydantic import Field

from bus.wire.ids import ModelId, NodeId, sayable
from bus.wire.kv import KvKind
from bus.wire.messages.derived import DerivedModel, plain_name
from bus.wire.messages.wire import Message
from bus.wire.topology import NodeAddress, RdmaPort

ModelKind = Literal["text", "embedding"]
"""What a model makes of a prompt: more text, or a vector."""

ModelOrigin = Literal["bundled", "put", "cache", "copied", "pulled", "derived"]
"""Where a model's folder comes from: with shoal, put there by a person, a Hugging Face cache, other
nodes, the hub, or made here of another model."""
PassedOverReason = Literal[
    "gguf", "pickled", "other_weights", "adapter_alone", "adapter_beside", "bad_adapter",
    "no_config",
    "bad_config", "no_weights", "bad_weights", "cut", "missing_shards", "lfs_pointer", "dead_link",
    "no_tokenizer", "media", "unknown_family", "image_model", "unfinished", "still_written",
    "pulled_in_part", "being_pulled", "packed", "alone", "stray", "empty", "nothing_known",
    "too_deep", "too_many", "same_name", "odd_name", "unreadable", "bad_card", "no_effect",
    "alias_taken",
]  # fmt: skip
"""Why something that lies where models do is not taken, or not wholly; the words for each are the
worker's (`worker.models.passed_over`)."""
_SAID_BY_CARD_FILE = ("aliases", "defaults", "card_at_s", "noted", "pin")
_WHERE_FROM = ("origin", "sources")
NAME_CHARACTERS, PATH_CHARACTERS, WORDS_CHARACTERS = 200, 600, 700
"""The longest texts of a `PassedOver`."""


class AdapterCard(Message):
    """A LoRA adapter that lies beside a model, and is asked for as `MODEL:NAME`. `rank` is the
    largest of its layers, `size_bytes` is on disk, `digest` is of its configuration and the
    beginning of its weights."""

    name: str
    rank: int
    size_bytes: int
    digest: str = ""
    modified_at_s: int = 0


class ModelCard(Message):
    """One model on disk, with what placement needs to know before it is loaded.

    Bytes are of the weights as they will lie in memory (after the cast to `dtype`), and of all
    `adapters` beside them, which are loaded with the model.
    `kv_bytes_per_token` is for the whole model; `kv_bytes_fixed` per row. `size_bytes` is on disk.

    Parts, for splitting it: `layer_bytes` of each layer's weights, `layer_active_bytes` of those
    that one token reads (a mixture reads some of its experts), `layer_kv` and `layer_kv_fixed`
    as above by layer; `embedding_bytes` lie with the first layers, `head_bytes` (final norm and
    output projection, which may be the embedding again) with the last. Empty: unknown, taken as
    equal. `activation_bytes` of one token travel between layers.

    `kv` is how its node holds what grows of the KV unless a load says otherwise; the bytes of the
    card are of full width. Values of `kv_value_bytes` are put in groups of `kv_group`; 0: they stay
    in full width, for the reason in `kv_full_because`, which is also why no window of them can be
    kept unless `kv_windows`.

    `tensor_sizes` are the counts, by name, that a tensor-parallel degree has to divide; empty:
    the family does not shard. `tensor_splits_kv`: its KV is divided too. `unsplit_because` says
    why the family cannot be a pipeline. `fetched_in_parts`: a stage of a pipeline fetches its own
    layers alone. `compatible_backends` (empty: any) and `backend_preference` (best first) are
    `<engine>-<compute>` tags.

    `makes`: an embedding model keeps no KV, runs on one rank alone, and takes `context_tokens` of
    each input. Its vectors have `dimensions` numbers unless another of `dimension_choices` is asked
    for, or any count up to `dimensions_at_most` (0: no other but the choices).

    `folder_name` is the folder's own name where no request could say it and the model therefore
    goes by another. `sources` are the nodes, or the repository, that it came from. `last_used_at_s`
    is of this node alone, to the minute; 0: not known. `aliases` and `defaults` are what its
    `card.toml` says to requests, `card_at_s` when that was written: the newest counts. `noted` are
    the keys that it has; `pin`: it keeps the model in memory. `memory_bytes` is what its weights
    take, by that card; 0: it does not say. `metal_fast_synch` is what runners of this node are
    started with, and `metal_fast_synch_by` who says so. `tool_parser` and `reasoning_parser` are
    those by which its output is read; empty: as its template says. `special_tokens_in_messages`:
    those that messages spell are tokens, not text.
    `made_from` is the model that it was made of in fewer bits. `load_s` is how long its last load
    took on this node, from an empty runner to a ready one; 0: not known.
    """

    model: ModelId
    path: str
    family: str
    layers: int
    weights_bytes: int
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
    made_from: str = ""
    load_s: float = 0.0
    adapters: tuple[AdapterCard, ...] = ()
    kv: KvKind = "full"
    kv_group: int = 0
    kv_value_bytes: int = 0
    kv_full_because: str = ""
    kv_windows: bool = False


class PartialModel(Message):
    """Some layers of a model, on a node's disk: each of `layers` is the first and the one after
    the last of a span whose weights are all there. `have_bytes` of the `size_bytes` of its files
    have come. It serves a stage of a pipeline, and is not given away. `path` is its folder."""

    model: ModelId
    layers: tuple[tuple[int, int], ...]
    have_bytes: int
    size_bytes: int
    path: str = ""

    def holds(self, first: int, last: int) -> bool:
        """Return whether layers `first` up to, not including, `last` are all there."""
        return covers(self.layers, first, last)


class PassedOver(Message):
    """Something that lies where a node's models do and is not taken: `why`, and the way out.
    `name` is what the model would be called. `taken`: it is a model, and what is said is about a
    part of its folder that has no effect. `aliases` are those of a `card.toml` that is refused, as
    far as they could be read: they are not in force."""

    name: str = Field(max_length=NAME_CHARACTERS)
    path: str = Field(max_length=PATH_CHARACTERS)
    why: str = Field(max_length=WORDS_CHARACTERS)
    remedy: str = Field(max_length=WORDS_CHARACTERS)
    taken: bool = False
    reason: PassedOverReason = "nothing_known"
    aliases: tuple[ModelId, ...] = ()


def models_of(nodes: Iterable[NodeCard]) -> dict[ModelId, ModelCard]:
    """Return the models of these nodes by name: the first node's card of each, with what the newest
    `card.toml` of all says, and where the copy of a node is from that did not copy it
    from another."""
    found: dict[ModelId, ModelCard] = {}
    for node in nodes:
        for model in node.models:
            known = found.setdefault(model.model, model)
            newer = _SAID_BY_CARD_FILE if model.card_at_s > known.card_at_s else ()
            is_first = known.origin == "copied" and model.origin != "copied"
            first = _WHERE_FROM if is_first else ()
            said = {name: getattr(model, name) for name in (*newer, *first)}
            if said:
                found[model.model] = known.model_copy(update=said)
    return found


def passed_over_named(
    name: str, passed_over: Iterable[tuple[str, PassedOver]]
) -> tuple[str, PassedOver] | None:
    """Return what lies on a disk, and is no model, that `name` may mean, with its node; None
    without one. A file goes by its name with or without what is behind the last dot, a folder also
    by the id that a model of its name would have. Where nothing lies under that name, it may be one
    that a model's refused card gives."""
    wanted = name.casefold().removesuffix(":latest")
    meant: tuple[str, PassedOver] | None = None
    for node, one in passed_over:
        names = short_names(one.name) | short_names(sayable(one.name))
        if not one.taken and wanted in names | {said.rpartition(".")[0] for said in names}:
            return node, one
        if meant is None and wanted in (alias.casefold() for alias in one.aliases):
            meant = node, one
    return meant


def not_in_force(one: PassedOver, node: str) -> str:
    """Return why a name that the refused card of a model gives it means nothing now."""
    return (
        f"the card that gives {one.name} this name has no effect ({one.path} on {node}): {one.why}"
    )


def pulls_in_part(card: NodeCard, model: str) -> list[PassedOver]:
    """Return the pulls of this model to this node that did not end, or have not yet."""
    reasons = ("pulled_in_part", "being_pulled")
    return [one for one in card.passed_over if one.name == model and one.reason in reasons]


def short_names(model: str) -> set[str]:
    """Return what a model may be called in small letters: its name with and without its owner."""
    whole = model.casefold().removesuffix(":latest")
    return {whole, whole.rpartition("/")[2]}


def model_named(name: str, known: Collection[ModelId]) -> ModelId | None:
    """Return the one model that `name` means, or None when there is none or more than one."""
    if ModelId(name) in known:
        return ModelId(name)
    plain = plain_name(name)
    if ModelId(plain) in known:
        return ModelId(plain)
    folded = plain.casefold()
    ends = {model for model in known if short_names(model) & {folded}}
    return next(iter(ends)) if len(ends) == 1 else None


def covers(spans: Iterable[tuple[int, int]], first: int, last: int) -> bool:
    """Return whether each of the layers [`first`, `last`) is in one of the spans."""
    held = tuple(spans)
    return all(any(a <= layer < b for a, b in held) for layer in range(first, last))


class NodeCard(Message):
    """A node's announcement of itself. `ttl_s` > 0; expired strictly after it.

    `chip` is the processor's name. `working_set_bytes` is what the GPU of a Mac may wire
    down, by its operator's limit or else by Metal's word (0: neither is told); `vram_bytes` and
    `gtt_bytes` are of a GPU of its own, or of an APU.
    `memory_bytes_per_s` 0: not measured. `machine` is alike on nodes of one machine. `rdma` names
    the device whose active port leads to each peer, by node id; `rdma_ports` are all there are.
    `os_version` names the system and its version; `launched_by` is who started the node
    (`shoal up`, `systemd`, `launchd`, ...). `tree` is the fingerprint of the code that runs, alike
    for equal files. Empty: not known.
    `weights_addresses` are where its worker gives the files of `models` to other nodes, best
    first; none: it does not. `parts` are models of which it has some layers only. `passed_over` is
    what lies on its disk and is no model, the first hundred of `passed_over_count`. `cannot_run`
    says why no runner can compute here (MLX is not installed), what to do, and is empty elsewhere.
    """

    node: NodeId = Field(min_length=1)
    name: str
    platform: str
    cores: int
    memory_bytes: int
    backends: tuple[str, ...]
    mlx_version: str
    shoal_version: str
    tree: str = ""
    slots: int
    models: tuple[ModelCard, ...] = ()
    parts: tuple[PartialModel, ...] = ()
    weights_addresses: tuple[str, ...] = ()
    announced_at_s: float
    ttl_s: float = Field(default=120.0, gt=0)
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


AHEAD_S = 60.0
"""How far a node's clock may be ahead of ours."""


def supersedes(card: NodeCard, known: NodeCard | None) -> bool:
    """Return whether a card takes the place of what is known of its node: it is newer, or of one
    stamp and the greater by its content. One that is heard again does, too."""
    if known is None or card.announced_at_s > known.announced_at_s:
        return True
    if card.announced_at_s < known.announced_at_s:
        return False
    return card == known or _content(card) > _content(known)


def _content(card: NodeCard) -> str:
    """Return all that a card says, equal for equal cards."""
    return json.dumps(card.model_dump(mode="json"), sort_keys=True)


def as_received(card: NodeCard, wall_s: float) -> NodeCard:
    """Return a node's card as it counts here at `wall_s`: one that is dated further ahead counts as
    of now, so that it hides the node's next cards no longer than until they come."""
    if card.announced_at_s <= wall_s + AHEAD_S:
        return card
    return card.model_copy(update={"announced_at_s": wall_s})
