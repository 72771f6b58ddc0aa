"""What each node can give to a model, and what is promised there already.

Pure. A node can give

    usable = min(what is free, its ceiling - what is reserved there)

where "free" is measured, less the reservations of shards that are still loading. The ceiling is
what the device recommends to use, else 0.75 x memory; a GPU of its own gives 0.90 x its memory,
and an APU that shares the machine's (GTT > VRAM and GTT >= RAM, both) adds GTT - 16 GB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bus.wire.cards import ModelCard, NodeCard, PartialModel
from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.readings import NodeReading
from bus.wire.topology import NodeAddress, RdmaPort

MEMORY_SHARE = 0.75
VRAM_SHARE = 0.90
APU_SYSTEM_BYTES = 16_000_000_000
"""What an APU leaves to the rest of the machine."""
UNMEASURED_BACKEND = "mlx-cpu"
_SHARED = ("-cpu", "-metal")
"""Backends that compute in the machine's own memory."""


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """A node as placement sees it: what it can give, what is reserved, which models it has.

    `free_bytes` and `disk_free_bytes` None: not measured yet. `limit_bytes` None: models may take
    0.75 of the memory. `gives_weights`: other nodes may fetch the files of its models from it.
    """

    id: NodeId
    name: str
    memory_bytes: int
    free_bytes: int | None
    reserved_bytes: int
    loading_bytes: int
    slots: int
    shards: int
    backends: tuple[str, ...]
    models: tuple[ModelCard, ...]
    limit_bytes: int | None = None
    disk_free_bytes: int | None = None
    chip: str = ""
    memory_bytes_per_s: float = 0.0
    machine: str = ""
    ips: tuple[NodeAddress, ...] = ()
    rdma: Mapping[str, str] = field(default_factory=dict[str, str])
    gives_weights: bool = True
    rdma_ports: tuple[RdmaPort, ...] = ()
    partial_models: tuple[PartialModel, ...] = ()

    @property
    def machine_id(self) -> str:
        """Return what names its machine: nodes of one machine share its memory."""
        return self.machine or self.id

    @property
    def ceiling_bytes(self) -> int:
        """Return the bytes that all models together may take here."""
        if self.limit_bytes is not None:
            return self.limit_bytes
        return int(MEMORY_SHARE * self.memory_bytes)

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
        return self.shards < self.slots

    def card_of(self, model: ModelId) -> ModelCard | None:
        """Return the card of a model that is whole on this node's disk, or None."""
        return next((one for one in self.models if one.model == model), None)

    def partial_of(self, model: ModelId) -> PartialModel | None:
        """Return what the disk has of a model that is not all there, or None."""
        return next((one for one in self.partial_models if one.model == model), None)


def node_capacities(
    cards: Mapping[NodeId, NodeCard],
    readings: Mapping[NodeId, NodeReading],
    instances: Mapping[str, Instance],
) -> list[NodeCapacity]:
    """Return every node that has announced itself, by id, with what is promised there already.

    A shard that is not ready counts as still loading: what it reserved is not yet measured; nor is
    that of a test, which takes and gives back memory as it goes. Nodes of one machine measure the
    same memory, so what loads on one of them counts on all.
    """
    reserved = dict.fromkeys(cards, 0)
    loading, shards = dict(reserved), dict(reserved)
    for instance in instances.values():
        if instance.status == "failed":
            continue
        ready = {rank.rank for rank in instance.ready}
        for shard in instance.shards:
            if shard.node in cards:
                shards[shard.node] += 1
                reserved[shard.node] += shard.bytes_reserved
                measured = shard.rank in ready and instance.test is None
                loading[shard.node] += 0 if measured else shard.bytes_reserved
    machines = {n: card.machine or n for n, card in cards.items()}
    there = dict.fromkeys(machines.values(), 0)
    for node, bytes_ in loading.items():
        there[machines[node]] += bytes_
    return [
        NodeCapacity(
            id=node,
            name=card.name,
            memory_bytes=card.memory_bytes,
            free_bytes=None if node not in readings else readings[node].memory_available_bytes,
            reserved_bytes=reserved[node],
            loading_bytes=there[machines[node]],
            slots=card.slots,
            shards=shards[node],
            backends=card.backends,
            models=card.models,
            limit_bytes=limit_bytes(card),
            disk_free_bytes=None if node not in readings else readings[node].disk_free_bytes,
            chip=card.chip,
            memory_bytes_per_s=card.memory_bytes_per_s,
            machine=card.machine,
            ips=card.ips,
            rdma=card.rdma,
            rdma_ports=card.rdma_ports,
            gives_weights=bool(card.weights_addresses),
            partial_models=card.parts,
        )
        for node, card in sorted(cards.items())
    ]


def limit_bytes(card: NodeCard) -> int | None:
    """Return the bytes that all models may take on a node's device, or None where only the
    machine's memory is known."""
    if card.vram_bytes and any(not tag.endswith(_SHARED) for tag in card.backends):
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
