"""Decides which nodes can run a model. For each node it gives the model card with the sizes for the
node's backend, and the bytes to fetch.

Pure. A node without the weights can fetch them from another node if its disk has enough free space.
It fetches all of them, or if the model's family allows it, only those of its pipeline stage. The
card then comes from any node that has the model. If no node has all of it, each node can only be
the stage of layers that are on its disk. Without Metal, floating-point weights are cast to
32 bits, so on such a node a 16-bit model takes twice its size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from bus.models.gguf import DTYPE, ENGINE, HOW_TO_ADD, LLAMA_TAG
from bus.models.tasks import COMMAND_DTYPE, COMMAND_TAG
from bus.wire.cards import ModelCard, NodeCard, PartialModel, joined_parts
from bus.wire.ids import ModelId, NodeId
from bus.wire.kv import KvKind, kind_for
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from master.placement.capacity import NodeCapacity, fitting_backends
from master.placement.gpus import home_of
from master.placement.memory_cost import LayerCosts, layer_costs
from master.placement.speed import read_s_per_byte

QUANTIZED_CAST = 1.15
"""Factor by which quantized weights grow when their scales and biases are cast to 32 bits."""

_WEIGHT_FIELDS = (
    "weights_bytes", "layer_bytes", "layer_active_bytes", "embedding_bytes", "head_bytes",
)  # fmt: skip
_KV_FIELDS = (
    "kv_bytes_per_token", "kv_bytes_fixed", "layer_kv", "layer_kv_fixed", "kv_value_bytes",
    "activation_bytes",
)  # fmt: skip
"""Fields of a card that grow when numbers are cast to 32 bits."""

Kind = Literal["pipeline", "tensor"]
RoomOf = Callable[[NodeCapacity], int]


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    """The model to place, and its conditions. `layers`: the number of layers by node (id or name),
    in stage order, if the user chose the split. `kv` None: as in its card. `barred`: nodes that do
    not get the model for now, with the reason."""

    model: ModelId
    context_tokens: int | None = None
    excluded_nodes: tuple[NodeId, ...] = ()
    min_nodes: int = 1
    sharding: Kind | None = None
    layers: Mapping[str, int] = field(default_factory=dict[str, int])
    kv: KvKind | None = None
    barred: Mapping[NodeId, str] = field(default_factory=dict[NodeId, str])


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A node that could run the model, with its backend and the model card with the sizes for that
    backend. The node's usable bytes are those of the memory in which this backend keeps the model.

    `disk_bytes`: how many bytes of the weights' files its disk can take, if not all; then the node
    can only be a stage of a pipeline. `partial`: the layers that its disk already has.
    `measured_s`: the measured seconds per token of the whole model; 0: use the prediction.
    """

    node: NodeCapacity
    card: ModelCard
    backend: str
    has_weights: bool
    costs: LayerCosts
    disk_bytes: int | None = None
    partial: PartialModel | None = None
    measured_s: float = 0.0

    @property
    def is_part(self) -> bool:
        """Return whether the node has only some layers of the model and cannot fetch the others."""
        return self.partial is not None and self.card is self.partial.card

    @property
    def fetch_bytes(self) -> int:
        """Return how many bytes of files the node must fetch before it can load the whole model."""
        have = 0 if self.partial is None else self.partial.have_bytes
        return 0 if self.has_weights else max(0, self.card.size_bytes - have)

    def stage_room(self, room: RoomOf) -> int:
        """Return the memory in bytes that a pipeline stage may use on this node. It is limited so
        that the stage's files fit on the disk, too. Files are assumed to be as large as the weights
        in memory."""
        there = room(self.node)
        if not self.disk_bytes:
            return there if self.disk_bytes is None else 0
        return min(there, self.costs.stage_limit(self.disk_bytes))

    def has_layers(self, first: int, last: int) -> bool:
        """Return whether layers [first, last) are on the node's disk."""
        return self.has_weights or (self.partial is not None and self.partial.holds(first, last))

    def fits_whole(self, room: RoomOf) -> bool:
        """Return whether the whole model fits on the node, in memory and on disk."""
        return self.disk_bytes is None and self.costs.whole.total <= room(self.node)

    @property
    def fits_ever(self) -> bool:
        """Return whether the memory of this backend would hold the whole model if all other models
        were unloaded."""
        return self.costs.whole.total <= self.node.ceiling_bytes

    @property
    def group_key(self) -> tuple[str, ...]:
        """Return what must be the same on all ranks of a group: engine, number type, files and KV
        format."""
        return (self.backend.partition("-")[0], self.card.dtype, self.card.digest, self.kv)

    @property
    def kv(self) -> KvKind:
        """Return the format of the part of the KV cache that grows with the tokens."""
        return self.costs.kv_kind

    @property
    def token_s(self) -> float:
        """Return the measured or predicted seconds per token if the node runs the whole model."""
        predicted_s = self.costs.read_bytes * read_s_per_byte(self.node, self.backend)
        return self.measured_s or predicted_s


def room_now(node: NodeCapacity) -> int:
    """Return how many bytes of memory a node can give to a model now; 0 if no runner slot is
    free."""
    return node.usable_bytes if node.has_slot else 0


def room_ever(node: NodeCapacity) -> int:
    """Return how many bytes of memory a node could give to a model if all other models were
    unloaded."""
    return node.ceiling_bytes


def find_copies(
    spec: PlacementSpec, allowed: Sequence[NodeCapacity], nodes: Sequence[NodeCapacity]
) -> tuple[tuple[LocalCopy, ...], dict[str, str]]:
    """Return the allowed nodes that could run the model, and for each other node, by name, why it
    cannot. At least one of `nodes` must have the model, or some of its layers. Nodes that are not
    allowed may still be the source from which the weights are copied."""
    given = [c for n in nodes if n.card.weights_addresses and (c := n.card_of(spec.model))]
    donors = [card for node in nodes if (card := node.card_of(spec.model)) is not None]
    donors = donors or split_cards(spec.model, nodes)
    copies: list[LocalCopy] = []
    blocked: dict[str, str] = {}
    costed: dict[tuple[int, str, bool], tuple[ModelCard, LayerCosts]] = {}
    for node in allowed:
        sources = _sources_of(spec, node, donors, given)
        if isinstance(sources, str):
            blocked[node.name] = sources
            continue
        options: list[LocalCopy] = []
        for source in sources:
            key = (id(source.card), source.backend, source.is_donor)
            if key not in costed:
                as_is = not source.is_donor
                card = source.card if as_is else card_as_computed(source.card, source.backend)
                kind = kind_for(spec.kv or card.kv, card.kv_group, windows=card.kv_windows)
                costed[key] = (card, layer_costs(card, spec.context_tokens, source.backend, kind))
            copy = _copy_of(spec, node, source, *costed[key])
            if isinstance(copy, str):
                blocked[node.name] = copy
                continue
            options.append(copy)
            if copy.fits_ever:
                break
        if options:
            blocked.pop(node.name, None)
            copies.append(max(options, key=lambda copy: (copy.fits_ever, copy.node.ceiling_bytes)))
    return _timed(spec.model, copies), blocked


def _timed(model: ModelId, copies: Sequence[LocalCopy]) -> tuple[LocalCopy, ...]:
    """Return the copies with their measured times if every copy was measured, else unchanged,
    because a measured time cannot be compared with a prediction."""
    cards = [copy.node.card_of(model) for copy in copies]
    speeds = [0.0 if card is None else card.tokens_per_s for card in cards]
    if not all(speeds):
        return tuple(copies)
    pairs = zip(copies, speeds, strict=True)
    return tuple(replace(copy, measured_s=1.0 / speed) for copy, speed in pairs)


def _copy_of(
    spec: PlacementSpec, node: NodeCapacity, source: _Source, card: ModelCard, costs: LayerCosts
) -> LocalCopy | str:
    """Return the node with one of its backends, or why that backend cannot run the model there."""
    home = home_of(node.card, source.backend, card)
    if isinstance(home, str):
        return home
    if home is not None and source.backend.startswith(LLAMA_TAG):
        home = replace(home, parts=costs.pieces)
    has_weights = node.card_of(spec.model) is not None
    at_home = replace(node, home=home)
    return LocalCopy(
        at_home, card, source.backend, has_weights, costs, source.disk_bytes, source.partial
    )


def _why_no_backend(card: ModelCard, node: NodeCapacity) -> str:
    """Return why no backend of a node runs a model, as text that follows the node's name."""
    fit, runs = card.compatible_backends, ", ".join(node.card.backends)
    if all(tag.startswith(LLAMA_TAG) for tag in fit):
        return (
            f"has no {ENGINE}, which a GGUF model needs; install it there ({HOW_TO_ADD}), then run "
            "`shoal restart` there"
        )
    if all(tag.startswith(COMMAND_TAG) for tag in fit):
        return f"has no engine {card.model} in its engines.toml"
    return f"has backends {runs}; the model needs one of {', '.join(fit)}"


def offering(
    nodes: Sequence[NodeCapacity], spec: PlacementSpec, card: ModelCard
) -> tuple[list[NodeCapacity], PlacementSpec]:
    """Return the nodes and conditions for placing a model that is still on a hub. A further node,
    which can run nothing, counts as having the model, so that every node could fetch its layers
    from there."""
    hub = NodeCard(
        node=NodeId("hub"),
        name="the hub",
        platform="",
        cores=0,
        memory_bytes=0,
        backends=(),
        mlx_version="",
        shoal_version="",
        slots=0,
        models=(card,),
        weights_addresses=("hub",),
        announced_at_s=0.0,
    )
    excluded = (*spec.excluded_nodes, hub.node)
    return [*nodes, NodeCapacity(hub, None)], replace(spec, excluded_nodes=excluded)


def split_cards(model: ModelId, nodes: Sequence[NodeCapacity]) -> list[ModelCard]:
    """Return the cards of the parts of a model that no node has completely. If the parts are of
    different files, these are the files of which the nodes together have all layers."""
    parts = [part for node in nodes if (part := node.partial_of(model)) is not None]
    whole = joined_parts(node.card for node in nodes).get(model)
    cards = [part.card for part in parts if part.card is not None]
    return [card for card in cards if whole is None or card.digest == whole.digest]


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a node gets a model from. `card` describes the node's own files, or the files of
    another node if `is_donor`. The other fields are those of `LocalCopy`."""

    card: ModelCard
    backend: str
    is_donor: bool = False
    disk_bytes: int | None = None
    partial: PartialModel | None = None


def _sources_of(
    spec: PlacementSpec,
    node: NodeCapacity,
    donors: Sequence[ModelCard],
    given: Sequence[ModelCard],
) -> list[_Source] | str:
    """Return where a node gets the model from, for each backend that can run it, best first; or why
    it cannot run it. A backend after the first is only for a model that never fits into the memory
    of those before it; all are of one engine."""
    if refusal := node.card.cannot_run or spec.barred.get(node.id):
        return refusal
    card = node.card_of(spec.model) or donors[0]
    tags = fitting_backends(card, node.card.backends)
    if not tags:
        return _why_no_backend(card, node)
    engine = tags[0].partition("-")[0]
    alike = [tag for tag in tags if tag.partition("-")[0] == engine]
    sources = [_source_of(spec, node, donors, given, tag) for tag in alike]
    why = next((source for source in sources if isinstance(source, str)), "")
    return [source for source in sources if isinstance(source, _Source)] or why


def _source_of(
    spec: PlacementSpec,
    node: NodeCapacity,
    donors: Sequence[ModelCard],
    given: Sequence[ModelCard],
    backend: str,
) -> _Source | str:
    """Return where a node gets the model from for this backend, or why it cannot run it."""
    own, part = node.card_of(spec.model), node.partial_of(spec.model)
    if own is not None:
        return _Source(own, backend)
    alike = [card for card in given if card.dtype == _dtype(backend)]
    donor = min(alike or given or donors, key=lambda card: card.size_bytes)
    if part is not None and part.card is not None and donor.digest not in ("", part.card.digest):
        return f"holds layers of other files with this name; delete them (`shoal rm {spec.model}`)"
    if not given:
        if part is None or part.card is None:
            return "lacks the weights, and no node shares them"
        return _Source(part.card, backend, disk_bytes=0, partial=part)
    disk_bytes = _disk_bytes(node, donor)
    is_full = disk_bytes == 0 and part is None
    if is_full or (disk_bytes is not None and not donor.fetched_in_parts):
        return "lacks disk space for the weights"
    return _Source(donor, backend, is_donor=True, disk_bytes=disk_bytes, partial=part)


def _disk_bytes(node: NodeCapacity, card: ModelCard) -> int | None:
    """Return how many bytes of the model's files fit on the node's disk. None if all of them fit or
    the free space is unknown."""
    if node.reading is None:
        return None
    takes = max(0, node.reading.disk_free_bytes - DISK_MARGIN_BYTES)
    return None if takes >= card.size_bytes else takes


def card_as_computed(card: ModelCard, backend: str) -> ModelCard:
    """Return the model card with the sizes that apply to that backend. If the card is for 32-bit
    numbers, it is returned unchanged, because it does not say which number types the files have.
    The sizes may then be overestimates. A GGUF model has the same sizes everywhere, and so has a
    program that serves a model."""
    if card.dtype in (_dtype(backend), "float32", DTYPE, COMMAND_DTYPE):
        return card
    times = 2.0 if card.quantization == "none" else QUANTIZED_CAST

    update: dict[str, object] = {"dtype": "float32"}
    for names, factor in ((_WEIGHT_FIELDS, times), (_KV_FIELDS, 2.0)):
        for name in names:
            size: int | tuple[int, ...] = getattr(card, name)
            parts = isinstance(size, tuple)
            update[name] = tuple(int(factor * s) for s in size) if parts else int(factor * size)
    return card.model_copy(update=update)


def _dtype(backend: str) -> str:
    return "float32" if backend.endswith("-cpu") else "auto"
