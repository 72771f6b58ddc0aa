"""The free memory of each node after all reservations. The computed or the measured value counts,
whichever is smaller.

Pure. A reservation is the memory that a plan holds for its model until the model is placed. While
the instances that are evicted for the plan are still loaded, their memory counts towards the
reservation; only the remainder is subtracted from free memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bus.wire.accelerators import DeviceKey, DeviceShare, bytes_on
from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Instance, Shard
from master.placement import DeviceRoom, NodeCapacity


@dataclass(frozen=True, slots=True)
class Promise:
    """A reservation: the bytes for a model on each node, and the instances that are evicted for it.
    `slots`: its runner slots on each node; a lease takes none. `devices`: the part of the bytes
    that is on GPUs."""

    model: ModelId
    needs: Mapping[NodeId, int]
    leaving: tuple[Instance, ...] = ()
    slots: int = 1
    devices: Mapping[NodeId, tuple[DeviceShare, ...]] = field(
        default_factory=dict[NodeId, tuple[DeviceShare, ...]]
    )

    def memory_bytes(self, node: NodeId) -> int:
        """Return the bytes of a node's own memory that the reservation needs."""
        return max(0, self.needs[node] - bytes_on(self.devices.get(node, ())))


def reserve(nodes: Sequence[NodeCapacity], promises: Iterable[Promise]) -> list[NodeCapacity]:
    """Return the nodes with their reserved memory subtracted."""
    held, loading, slots = dict[NodeId, int](), dict[str, int](), dict[NodeId, int]()
    on_gpu = Counter[tuple[str, DeviceKey]]()
    machines = {node.id: node.machine_id for node in nodes}
    for promise in promises:
        for node in promise.needs:
            there = shards_on(promise.leaving, node)
            freed = sum(shard.memory_bytes for shard in there)
            net = max(0, promise.memory_bytes(node) - freed)
            held[node] = held.get(node, 0) + net
            machine = machines.get(node, node)
            loading[machine] = loading.get(machine, 0) + net
            slots[node] = slots.get(node, 0) + max(0, promise.slots - len(there))
            emptied = _on_devices(there)
            for share in promise.devices.get(node, ()):
                on_gpu[machine, share.key] += max(0, share.bytes_reserved - emptied[share.key])
    return [
        replace(
            node,
            reserved_bytes=node.reserved_bytes + held.get(node.id, 0),
            loading_bytes=node.loading_bytes + loading.get(node.machine_id, 0),
            shards=node.shards + slots.get(node.id, 0),
            devices=tuple(
                replace(
                    room,
                    reserved_bytes=room.reserved_bytes + on_gpu[node.machine_id, room.key],
                    loading_bytes=room.loading_bytes + on_gpu[node.machine_id, room.key],
                )
                for room in node.devices
            ),
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
        and there[node].reserved_bytes + promise.memory_bytes(node) <= there[node].ceiling_bytes
        and _devices_hold(there[node], promise.devices.get(node, ()))
        for node in promise.needs
    )


def _devices_hold(node: NodeCapacity, shares: Iterable[DeviceShare]) -> bool:
    """Return whether the GPUs of a node hold these shares beside all reservations."""
    left = {room.key: room.ceiling_bytes - room.reserved_bytes for room in node.devices}
    return all(share.bytes_reserved <= left.get(share.key, -1) for share in shares)


def _on_devices(shards: Iterable[Shard]) -> Counter[DeviceKey]:
    """Return the bytes that ranks reserve on each GPU."""
    bytes_ = Counter[DeviceKey]()
    for shard in shards:
        for share in shard.devices:
            bytes_[share.key] += share.bytes_reserved
    return bytes_


def without(node: NodeCapacity, gone: Iterable[Instance]) -> NodeCapacity:
    """Return a node as it will be after the instances `gone` have been unloaded."""
    shards = shards_on(gone, node.id)
    freed = sum(shard.memory_bytes for shard in shards)
    emptied = _on_devices(shards)
    reading = node.reading
    if reading is not None:
        available = min(reading.memory_total_bytes, reading.memory_available_bytes + freed)
        reading = reading.model_copy(update={"memory_available_bytes": available})
    return replace(
        node,
        reading=reading,
        reserved_bytes=max(0, node.reserved_bytes - freed),
        shards=max(0, node.shards - len(shards)),
        devices=tuple(_emptied(room, emptied[room.key]) for room in node.devices),
    )


def _emptied(room: DeviceRoom, freed: int) -> DeviceRoom:
    """Return a GPU as it will be after `freed` bytes of its reservations are gone."""
    device = room.device
    if device.free_bytes is not None:
        free = min(device.total_bytes, device.free_bytes + freed)
        device = device.model_copy(update={"free_bytes": free})
    return replace(room, device=device, reserved_bytes=max(0, room.reserved_bytes - freed))


def shards_on(copies: Iterable[Instance], node: NodeId) -> list[Shard]:
    """Return the ranks of these instances that are on a node."""
    return [shard for copy in copies for shard in copy.shards if shard.node == node]
