"""What each node can give to a model, and what is promised there already.

Pure. A node can give

    usable = min(what is free, its ceiling - what is reserved there)

where "free" is measured, less the reservations of shards that are still loading. The ceiling is
what the GPU of a Mac may wire down, else 0.75 x memory; a GPU of its own gives 0.90 x its memory,
and an APU that shares the machine's (GTT > VRAM and GTT >= RAM, both) adds GTT - 16 GB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bus.wire.cards import ModelCard, NodeCard, PartialModel
from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.readings import NodeReading

MEMORY_SHARE = 0.75
VRAM_SHARE = 0.90
APU_SYSTEM_BYTES = 16_000_000_000
"""What an APU leaves to the rest of the machine."""
UNMEASURED_BACKEND = "mlx-cpu"
_SHARED = ("-cpu", "-metal")
"""Backends that compute in the machine's own memory."""


@dataclass(frozen=True, slots=True)
class LeasedMemory:
    """Memory of a node that a lease keeps, and how much of it was not yet seen to be used."""

    node: NodeId
    size_bytes: int
    unused_bytes: int


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """A node as placement sees it: what it says of itself, its latest `reading` (None: not measured
    yet), and what is promised there: bytes, those that are not taken yet (of shards that are
    loading, and of leases), and how many shards there are."""

    card: NodeCard
    reading: NodeReading | None
    reserved_bytes: int = 0
    loading_bytes: int = 0
    shards: int = 0

    @property
    def id(self) -> NodeId:
        """Return the node's id."""
        return self.card.node

    @property
    def name(self) -> str:
        """Return what people call the node."""
        return self.card.name

    @property
    def free_bytes(self) -> int | None:
        """Return the bytes of memory that are free, or None where that is not measured yet."""
        return None if self.reading is None else self.reading.memory_available_bytes

    @property
    def machine_id(self) -> str:
        """Return what names its machine: nodes of one machine share its memory."""
        return self.card.machine or self.id

    @property
    def ceiling_bytes(self) -> int:
        """Return the bytes that all models together may take here."""
        limit = limit_bytes(self.card)
        return int(MEMORY_SHARE * self.card.memory_bytes) if limit is None else limit

    @property
    def usable_bytes(self) -> int:
        """Return the bytes that one more model may take now; 0 before a first measurement."""
        by_share = self.ceiling_bytes - self.reserved_bytes
        if self.free_bytes is None:
            return 0
        return max(0, min(self.free_bytes - self.loading_bytes, by_share))

    @property
    def has_slot(self) -> bool:
        """Return whether a runner slot is free."""
        return self.shards < self.card.slots

    def card_of(self, model: ModelId) -> ModelCard | None:
        """Return the card of a model that is whole on this node's disk, or None."""
        return next((one for one in self.card.models if one.model == model), None)

    def partial_of(self, model: ModelId) -> PartialModel | None:
        """Return what the disk has of a model that is not all there, or None."""
        return next((one for one in self.card.parts if one.model == model), None)


def node_capacities(
    cards: Mapping[NodeId, NodeCard],
    readings: Mapping[NodeId, NodeReading],
    instances: Mapping[str, Instance],
    leased: Iterable[LeasedMemory] = (),
) -> list[NodeCapacity]:
    """Return every node that has announced itself, by id, with what is promised there already.

    A shard that is not ready counts as still loading: what it reserved is not yet measured; nor is
    that of a test, or of work on a model, which take and give back memory as they go. Nodes of one
    machine measure the same memory, so what loads on one of them counts on all; so does what of a
    lease is not used yet. What an owner says that it uses is the machine's memory, not a GPU's own.
    """
    machines = {node: card.machine or node for node, card in cards.items()}
    reserved, shards = Counter[NodeId](), Counter[NodeId]()
    loading = Counter[str | None]()
    for instance in instances.values():
        if instance.status == "failed":
            continue
        ready = {rank.rank for rank in instance.ready if instance.serves}
        for shard in instance.shards:
            shards[shard.node] += 1
            reserved[shard.node] += shard.bytes_reserved
            if shard.rank not in ready:
                loading[machines.get(shard.node)] += shard.bytes_reserved
    for lease in leased:
        card = cards.get(lease.node)
        is_seen = card is not None and not computes_in_vram(card)
        reserved[lease.node] += lease.size_bytes
        loading[machines.get(lease.node)] += lease.unused_bytes if is_seen else lease.size_bytes
    return [
        NodeCapacity(
            card, readings.get(node), reserved[node], loading[machines[node]], shards[node]
        )
        for node, card in sorted(cards.items())
    ]


def supposing(nodes: Sequence[NodeCapacity], node: NodeId, card: ModelCard) -> list[NodeCapacity]:
    """Return the nodes as if one of them had a model on its disk whole, in the place of what it or
    others have under that name."""
    found: list[NodeCapacity] = []
    for one in nodes:
        models = tuple(known for known in one.card.models if known.model != card.model)
        if one.id == node:
            models = (*models, card)
        found.append(replace(one, card=one.card.model_copy(update={"models": models})))
    return found


def computes_in_vram(card: NodeCard) -> bool:
    """Return whether models lie in the memory of a GPU of its own."""
    return bool(card.vram_bytes) and any(not tag.endswith(_SHARED) for tag in card.backends)


def limit_bytes(card: NodeCard) -> int | None:
    """Return the bytes that all models may take on a node's device, or None where only the
    machine's memory is known."""
    if computes_in_vram(card):
        vram = int(VRAM_SHARE * card.vram_bytes)
        shares = card.gtt_bytes > card.vram_bytes and card.gtt_bytes >= card.memory_bytes
        return vram + max(0, card.gtt_bytes - APU_SYSTEM_BYTES) if shares else vram
    return min(card.working_set_bytes, card.memory_bytes) or None


def resolve_backend(card: ModelCard, backends: Sequence[str]) -> str | None:
    """Return the backend tag that a model runs under on a node, or None where none can run it.

    Of several it is the one that the model's card prefers, else the one that the node names first.
    """
    named = backends or (UNMEASURED_BACKEND,)
    fit = [one for one in named if not card.compatible_backends or one in card.compatible_backends]
    return min(fit, key=lambda tag: preference_rank(card, tag), default=None)


def preference_rank(card: ModelCard, tag: str) -> int:
    """Return the place of a backend in the card's list, from 0; the list's length if not in it."""
    liked = card.backend_preference
    return liked.index(tag) if tag in liked else len(liked)
