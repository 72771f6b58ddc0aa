"""What each node can give when what is promised is kept: the least of arithmetic and measurement.

Pure. A promise is the room that a plan holds for its model until that is placed. As long as its
victims are there, their bytes are the promise; what they do not cover is taken from what is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Instance, Shard
from master.placement import NodeCapacity


@dataclass(frozen=True, slots=True)
class Promise:
    """The bytes that a model is to have on each of its nodes, and the copies that leave for it.
    `slots` are the runner slots that it takes on each: a lease takes none."""

    model: ModelId
    needs: Mapping[NodeId, int]
    leaving: tuple[Instance, ...] = ()
    slots: int = 1


def reserve(nodes: Sequence[NodeCapacity], promises: Iterable[Promise]) -> list[NodeCapacity]:
    """Return the nodes without what is promised there."""
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
    """Return whether a promise can be kept on nodes that have kept what `others` were promised, by
    what is reserved there, not by what is measured."""
    claimed = {one.instance for other in others for one in other.leaving}
    if any(one.instance in claimed for one in promise.leaving):
        return False
    there = {node.id: without(node, promise.leaving) for node in nodes}
    return all(
        node in there
        and there[node].shards + promise.slots <= there[node].card.slots
        and there[node].reserved_bytes + need <= there[node].ceiling_bytes
        for node, need in promise.needs.items()
    )


def without(node: NodeCapacity, gone: Iterable[Instance]) -> NodeCapacity:
    """Return a node as it will be when these copies have left it."""
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
    """Return the shards that copies have on a node."""
    return [shard for copy in copies for shard in copy.shards if shard.node == node]
