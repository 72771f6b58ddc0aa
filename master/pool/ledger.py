"""The free memory of each node after all reservations. The computed or the measured value counts,
whichever is smaller.

Pure. A reservation is the memory that a plan holds for its model until the model is placed. While
the instances that are evicted for the plan are still loaded, their memory counts towards the
reservation; only the remainder is subtracted from free memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Instance, Shard
from master.placement import NodeCapacity


@dataclass(frozen=True, slots=True)
class Promise:
    """A reservation: the bytes for a model on each node, and the instances that are evicted for it.
    `slots`: its runner slots on each node; a lease takes none."""

    model: ModelId
    needs: Mapping[NodeId, int]
    leaving: tuple[Instance, ...] = ()
    slots: int = 1


def reserve(nodes: Sequence[NodeCapacity], promises: Iterable[Promise]) -> list[NodeCapacity]:
    """Return the nodes with their reserved memory subtracted."""
    held, loading, slots = dict[NodeId, int](), dict[str, int](), dict[NodeId, int]()
    machines = {node.id: node.machine_id for node in nodes}
    for promise in promises:
        for node, need in promise.needs.items():
            there = shards_on(promise.leaving, node)
            net = max(0, need - sum(shard.bytes_reserved for shard in there))
            held[node] = held.get(node, 0) + net
            machine = machines.get(node, node)
            loading[machine] = loading.get(machine, 0) + net
            slots[node] = slots.get(node, 0) + max(0, promise.slots - len(there))
    return [
        replace(
            node,
            reserved_bytes=node.reserved_bytes + held.get(node.id, 0),
            loading_bytes=node.loading_bytes + loading.get(node.machine_id, 0),
            shards=node.shards + slots.get(node.id, 0),
        )
        for node in nodes
    ]


def holds_by_sum(
    promise: Promise, nodes: Iterable[NodeCapacity], others: Iterable[Promise]
) -> bool:
    """Return whether a reservation fits on its nodes together with the reservations of `others`.
    This compares reserved bytes and ignores measurements."""
    claimed = {victim.instance for other in others for victim in other.leaving}
    if any(victim.instance in claimed for victim in promise.leaving):
        return False
    there = {node.id: without(node, promise.leaving) for node in nodes}
    return all(
        node in there
        and there[node].shards + promise.slots <= there[node].card.slots
        and there[node].reserved_bytes + need <= there[node].ceiling_bytes
        for node, need in promise.needs.items()
    )


def without(node: NodeCapacity, gone: Iterable[Instance]) -> NodeCapacity:
    """Return a node as it will be after the instances `gone` have been unloaded."""
    shards = shards_on(gone, node.id)
    freed = sum(shard.bytes_reserved for shard in shards)
    reading = node.reading
    if reading is not None:
        available = min(reading.memory_total_bytes, reading.memory_available_bytes + freed)
        reading = reading.model_copy(update={"memory_available_bytes": available})
    return replace(
        node,
        reading=reading,
        reserved_bytes=max(0, node.reserved_bytes - freed),
        shards=max(0, node.shards - len(shards)),
    )


def shards_on(copies: Iterable[Instance], node: NodeId) -> list[Shard]:
    """Return the ranks of these instances that are on a node."""
    return [shard for copy in copies for shard in copy.shards if shard.node == node]
