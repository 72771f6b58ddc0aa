"""The usable memory of each node, and the memory that is already reserved on it.

Pure. The memory that a node can give to one more model is

    usable = min(free memory, ceiling - reserved memory)

Free memory is measured, less the reservations of ranks that are still loading. The ceiling of a Mac
is the memory that its GPU may wire; that of any other node is 0.75 x its memory. The GPUs that hold
a model are its `home`; for such a model their memory counts (`master.placement.gpus`). The
machine's memory only has to hold the 256 MB of its process. An APU that shares the machine's memory
(GTT > VRAM and GTT >= RAM) adds as much of it as the GPU can map, less 16 GB. Cards of older nodes
list no GPUs: there the ceiling of a discrete GPU is 0.90 x its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bus.models.tasks import COMMAND_TAG
from bus.wire.accelerators import DeviceKey, DeviceShare
from bus.wire.cards import ModelCard, NodeCard, PartialModel
from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.readings import NodeReading
from master.placement.gpus import (
    APU_SYSTEM_BYTES,
    DeviceRoom,
    Home,
    device_rooms,
    home_of,
    shares_of,
    usable_in,
)
from master.placement.memory_cost import FIXED_BYTES

MEMORY_SHARE = 0.75
VRAM_SHARE = 0.90
UNMEASURED_BACKEND = "mlx-cpu"
_SHARED = ("-cpu", "-metal")
"""Endings of the backend tags whose models are in the machine's own memory."""


@dataclass(frozen=True, slots=True)
class LeasedMemory:
    """A lease's memory on a node, and the part of it that is not in use yet."""

    node: NodeId
    size_bytes: int
    unused_bytes: int


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """A node as placement sees it: its card, its latest `reading` (None: not measured yet), and its
    reservations. These are their bytes, the bytes not allocated yet (of loading ranks and leases),
    and the number of ranks. `devices`: its GPUs with their reservations. `home`: the GPUs that the
    usable bytes and the ceiling describe; None: they describe the machine's memory."""

    card: NodeCard
    reading: NodeReading | None
    reserved_bytes: int = 0
    loading_bytes: int = 0
    shards: int = 0
    devices: tuple[DeviceRoom, ...] = ()
    home: Home | None = None

    @property
    def id(self) -> NodeId:
        """Return the node's id from its card."""
        return self.card.node

    @property
    def name(self) -> str:
        """Return the node's display name."""
        return self.card.name

    @property
    def free_bytes(self) -> int | None:
        """Return the bytes of free memory; None before the first measurement."""
        return None if self.reading is None else self.reading.memory_available_bytes

    @property
    def machine_id(self) -> str:
        """Return the id of the node's machine. Nodes of one machine share its memory."""
        return self.card.machine or self.id

    @property
    def ceiling_bytes(self) -> int:
        """Return the limit in bytes for all models together on this node, or on the GPUs of its
        home."""
        if self.home is None:
            return self.memory_ceiling_bytes
        rooms = [room.ceiling_bytes for room in self.rooms]
        return self._in_home(rooms, self.memory_ceiling_bytes, self._mapped_bytes)

    @property
    def memory_ceiling_bytes(self) -> int:
        """Return the limit in bytes for all models together in the machine's memory."""
        limit = limit_bytes(self.card)
        return int(MEMORY_SHARE * self.card.memory_bytes) if limit is None else limit

    @property
    def usable_bytes(self) -> int:
        """Return the bytes available to one more model, on the GPUs of its home if it has one; 0
        before the first measurement."""
        if self.free_bytes is None:
            return 0
        free = self.free_bytes - self.loading_bytes
        of_memory = self.memory_ceiling_bytes - self.reserved_bytes
        mapped = min(free, self._mapped_bytes - self.reserved_bytes)
        if self.home is None:
            return max(0, min(free, of_memory))
        return self._in_home(self._usable_rooms, min(free, of_memory), mapped)

    @property
    def rooms(self) -> list[DeviceRoom]:
        """Return the GPUs of the home, in its order; none without a home."""
        return [] if self.home is None else device_rooms(self.home, self.devices)

    def shares(self, size_bytes: int) -> tuple[DeviceShare, ...]:
        """Return how a model that reserves `size_bytes` in all is divided over the GPUs of its
        home. Empty: there is no home, or the model does not fit as a whole."""
        if self.home is None:
            return ()
        return shares_of(self.home, self._usable_rooms, max(0, size_bytes - FIXED_BYTES)) or ()

    @property
    def _usable_rooms(self) -> list[int]:
        return [room.usable_bytes for room in self.rooms]

    def _in_home(self, rooms: Sequence[int], of_memory: int, mapped: int) -> int:
        """Return the bytes of a model on GPUs with these rooms, its process's memory included; 0 if
        the machine's memory does not hold the process. `mapped`: the machine's memory that an APU
        may use."""
        assert self.home is not None, "the node has no home (GPUs) for this model"
        if self.home.spills:
            held = sum(rooms) + max(0, mapped - FIXED_BYTES)
            return held + FIXED_BYTES if held and mapped >= FIXED_BYTES else 0
        held = usable_in(self.home, rooms)
        return held + FIXED_BYTES if held and of_memory >= FIXED_BYTES else 0

    @property
    def _mapped_bytes(self) -> int:
        """Return the bytes of the machine's memory that an APU may map for models; 0 if no GPU of
        `home` is part of an APU."""
        keys = () if self.home is None else self.home.keys
        gtt = max((room.device.gtt_bytes for room in self.devices if room.key in keys), default=0)
        return max(0, min(gtt, self.card.memory_bytes) - APU_SYSTEM_BYTES)

    @property
    def has_slot(self) -> bool:
        """Return whether a runner slot is free."""
        return self.shards < self.card.slots

    def card_of(self, model: ModelId) -> ModelCard | None:
        """Return the card of a model if its files are complete on this node's disk, or None."""
        return next(
            (model_card for model_card in self.card.models if model_card.model == model), None
        )

    def partial_of(self, model: ModelId) -> PartialModel | None:
        """Return the model of that name of which only some layers are on this node's disk, or
        None."""
        return next(
            (model_card for model_card in self.card.parts if model_card.model == model), None
        )

    def described(self, model: ModelId) -> ModelCard | None:
        """Return the card of a model of which the node has all files or some layers, or None."""
        part = self.partial_of(model)
        return self.card_of(model) or (None if part is None else part.card)


def node_capacities(
    cards: Mapping[NodeId, NodeCard],
    readings: Mapping[NodeId, NodeReading],
    instances: Mapping[str, Instance],
    leased: Iterable[LeasedMemory] = (),
) -> list[NodeCapacity]:
    """Return every node that has announced itself, by id, with its reservations.

    A rank that is not ready counts as loading, because its memory is not yet measured. Tests and
    quantizations always count as loading, because their memory rises and falls. Nodes of one
    machine measure the same memory, so loading ranks of one node count on all of them. So do the
    unused part of a lease and all reservations on GPUs. The reported use of a lease is memory
    of the machine, not of a discrete GPU.
    """
    machines = {node: card.machine or node for node, card in cards.items()}
    reserved, shards = Counter[NodeId](), Counter[NodeId]()
    loading = Counter[str | None]()
    on_gpu = Counter[tuple[str | None, DeviceKey]]()
    loading_on_gpu = Counter[tuple[str | None, DeviceKey]]()
    for instance in instances.values():
        if instance.status == "failed":
            continue
        ready = {rank.rank for rank in instance.ready if instance.serves}
        for shard in instance.shards:
            machine = machines.get(shard.node)
            shards[shard.node] += 1
            reserved[shard.node] += shard.memory_bytes
            for share in shard.devices:
                on_gpu[machine, share.key] += share.bytes_reserved
            if shard.rank not in ready:
                loading[machine] += shard.memory_bytes
                for share in shard.devices:
                    loading_on_gpu[machine, share.key] += share.bytes_reserved
    for lease in leased:
        card = cards.get(lease.node)
        is_seen = card is not None and not computes_in_vram(card)
        reserved[lease.node] += lease.size_bytes
        loading[machines.get(lease.node)] += lease.unused_bytes if is_seen else lease.size_bytes
    return [
        NodeCapacity(
            card,
            readings.get(node),
            reserved[node],
            loading[machines[node]],
            shards[node],
            tuple(
                DeviceRoom(
                    device,
                    on_gpu[machines[node], device.key],
                    loading_on_gpu[machines[node], device.key],
                )
                for device in card.devices
            ),
        )
        for node, card in sorted(cards.items())
    ]


def supposing(nodes: Sequence[NodeCapacity], node: NodeId, card: ModelCard) -> list[NodeCapacity]:
    """Return the nodes as if `node` had this model complete on its disk. Other models of that name
    are removed from the cards of all nodes."""
    nodes_then: list[NodeCapacity] = []
    for node_before in nodes:
        models = tuple(
            model_card for model_card in node_before.card.models if model_card.model != card.model
        )
        if node_before.id == node:
            models = (*models, card)
        nodes_then.append(
            replace(node_before, card=node_before.card.model_copy(update={"models": models}))
        )
    return nodes_then


def computes_in_vram(card: NodeCard) -> bool:
    """Return whether all models on this node are in the memory of a discrete GPU. False for cards
    that list GPUs, because there each model has its home; only cards of older nodes list none."""
    return (
        not card.devices
        and bool(card.vram_bytes)
        and any(
            not tag.endswith(_SHARED) and not tag.startswith(COMMAND_TAG) for tag in card.backends
        )
    )


def limit_bytes(card: NodeCard) -> int | None:
    """Return the limit in bytes that a node's device sets for all models, or None if only the
    machine's memory is known."""
    if computes_in_vram(card):
        vram = int(VRAM_SHARE * card.vram_bytes)
        shares = card.gtt_bytes > card.vram_bytes and card.gtt_bytes >= card.memory_bytes
        return vram + max(0, card.gtt_bytes - APU_SYSTEM_BYTES) if shares else vram
    return min(card.working_set_bytes, card.memory_bytes) or None


def at_home(node: NodeCapacity, backend: str) -> NodeCapacity:
    """Return a node with the memory in which a backend of MLX computes: a GPU's, or its own."""
    home = home_of(node.card, backend)
    return replace(node, home=home if isinstance(home, Home) else None)


def resolve_backend(card: ModelCard, backends: Sequence[str]) -> str | None:
    """Return the backend tag for a model on a node, or None if none can run it.

    It is the first backend of the model card's preference list that the node has, else the first of
    the node's own list.
    """
    return next(iter(fitting_backends(card, backends)), None)


def fitting_backends(card: ModelCard, backends: Sequence[str]) -> list[str]:
    """Return the backend tags that can run a model on a node, best first."""
    named = backends or (UNMEASURED_BACKEND,)
    fit = [tag for tag in named if not card.compatible_backends or tag in card.compatible_backends]
    return sorted(fit, key=lambda tag: preference_rank(card, tag))


def preference_rank(card: ModelCard, tag: str) -> int:
    """Return the index of a backend in the model card's preference list; the list's length if the
    backend is not listed."""
    liked = card.backend_preference
    return liked.index(tag) if tag in liked else len(liked)
