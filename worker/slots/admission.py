"""What a worker knows beside state and slots, and whether a shard can be held here by it.

Pure. Nothing is fetched that would not fit into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.wire.cards import ModelCard
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Instance, Shard
from worker.models.layer_bytes import Layers, Range, is_covered, part_wanted
from worker.slots.actions import FetchModel
from worker.slots.table import Slot, SlotTable

TOLERANCE = 1.10
ROOM_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """What the worker knows beside state and slots.

    `free_bytes` is measured now; None when it cannot be (then nothing is refused for it).
    `paths` are the models on this disk, `announced` those on other nodes' (complete once
    `has_heard`). `fetches` are under way, or have failed for the reason given; of those that
    `arrived` more layers may be wanted. `settled`: the inventory is complete. `parts` are the
    spans of layers of models that lie here in part, `announced_parts` those on other nodes,
    `cards` what other nodes say of theirs.
    """

    node: NodeId
    settled: bool
    free_bytes: int | None
    paths: frozenset[str]
    load_deadline_s: float
    now: float
    announced: Mapping[NodeId, frozenset[ModelId]] = field(
        default_factory=dict[NodeId, frozenset[ModelId]]
    )
    fetches: Mapping[ModelId, Refusal | None] = field(default_factory=dict[ModelId, Refusal | None])
    has_heard: bool = True
    arrived: frozenset[ModelId] = frozenset()
    parts: Mapping[str, frozenset[Range]] = field(default_factory=dict[str, frozenset[Range]])
    announced_parts: Mapping[NodeId, Mapping[str, frozenset[Range]]] = field(
        default_factory=dict[NodeId, Mapping[str, frozenset[Range]]]
    )
    cards: Mapping[ModelId, ModelCard] = field(default_factory=dict[ModelId, ModelCard])

    def has(self, instance: Instance, shard: Shard) -> bool:
        """Whether what a rank loads lies on this disk."""
        return instance.model in self.paths or _in_parts(instance, shard, self.parts)

    def other_lacks(self, instance: Instance, shard: Shard) -> bool:
        """Whether another rank's node is known not to have what it loads."""
        there = self.announced.get(shard.node)
        if there is None or instance.model in there:
            return False
        return not _in_parts(instance, shard, self.announced_parts.get(shard.node, {}))


def _in_parts(instance: Instance, shard: Shard, parts: Mapping[str, frozenset[Range]]) -> bool:
    if instance.sharding != "pipeline":
        return False
    layers = Layers(shard.first_layer, shard.last_layer, shard.last_layer)
    return is_covered(layers, parts.get(instance.model, ()))


def part_to_fetch(instance: Instance, shard: Shard, inventory: NodeInventory) -> Layers | None:
    """What of the model a rank's node has to fetch; None: all of it."""
    card = inventory.cards.get(instance.model)
    if card is None or instance.sharding != "pipeline":
        return None
    return part_wanted(card, shard.first_layer, shard.last_layer)


def admitted(
    instance: Instance, shard: Shard, table: SlotTable, inventory: NodeInventory
) -> Refusal | list[FetchModel] | None:
    """None: start it now. A list: wait, perhaps fetching. A refusal: it cannot be held here.

    Memory is judged before a fetch begins and when the rank could start; a dip between does not
    count.
    """
    weights = supplied(instance, shard, inventory)
    if isinstance(weights, Refusal) or weights == []:
        return weights
    return crowded(instance, shard, table, inventory) or weights


def crowded(
    instance: Instance, shard: Shard, table: SlotTable, inventory: NodeInventory
) -> Refusal | None:
    """Why the memory that is free does not do, if so."""
    if inventory.free_bytes is None:
        return None
    coming = sum(_still_coming(slot) for slot in table.slots.values())
    free = inventory.free_bytes - coming
    if shard.bytes_reserved <= free * TOLERANCE:
        return None
    return Refusal(
        reason="insufficient_memory",
        message=(
            f"{instance.model} was placed here with {shard.bytes_reserved / 1e9:.2f} GB, but "
            f"{max(free, 0) / 1e9:.2f} GB are free now (10 % tolerated)"
        ),
        retry_after_s=ROOM_RETRY_S,
        facts={
            "reserved_bytes": shard.bytes_reserved,
            "free_bytes": inventory.free_bytes,
            "loading_bytes": coming,
        },
    )


def supplied(
    instance: Instance, shard: Shard, inventory: NodeInventory
) -> Refusal | list[FetchModel] | None:
    """None: the weights are here, and on the nodes of the other ranks. A list: they are
    waited for, perhaps by fetching them. A refusal: they will not come."""
    model = instance.model
    if instance.test is not None:
        return None
    if not inventory.has(instance, shard):
        if (refusal := inventory.fetches.get(model)) is not None:
            return refusal
        if model in inventory.fetches and model not in inventory.arrived:
            return []
        if any(model in models for models in inventory.announced.values()):
            return [FetchModel(model, part_to_fetch(instance, shard, inventory))]
        text = f"{model} is no longer on this node's disk or any other's"
        return Refusal(reason="unknown_model", message=text) if inventory.has_heard else []
    others = [other for other in instance.shards if other.node != inventory.node]
    return [] if any(inventory.other_lacks(instance, other) for other in others) else None


def vanished(instance: Instance, shard: Shard, inventory: NodeInventory) -> Refusal | None:
    """Why it cannot be loaded from this disk any more, if so."""
    if instance.test is not None or inventory.has(instance, shard):
        return None
    text = f"{instance.model} is no longer on this node's disk"
    return Refusal(reason="unknown_model", message=text)


def _still_coming(slot: Slot) -> int:
    """Weights of a loading runner that are not in memory yet."""
    if slot.life != "loading" or slot.hello is None:
        return 0
    return max(0, slot.hello.total_bytes - slot.hello.done_bytes)
