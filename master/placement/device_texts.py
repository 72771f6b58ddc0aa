"""The memory of a node's GPUs as text and as facts, for refusals.

Pure.
"""

from __future__ import annotations

from typing import Any

from bus.wire.accelerators import device_title
from master.placement.capacity import APU_SYSTEM_BYTES, NodeCapacity
from master.placement.devices import KEPT_BYTES, DeviceRoom, Home, device_rooms
from master.placement.memory_cost import gb


def ceiling_text(node: NodeCapacity, home: Home) -> str:
    """Return which GPUs hold a model on a node, and how it may use them."""
    each = [
        f"{device_title(room.key)} has {gb(room.device.total_bytes)} GB"
        for room in device_rooms(home, node.devices)
    ]
    kept = f"of which {gb(KEPT_BYTES)} GB stay free on each"
    if home.spills:
        kept += f", and maps the machine's memory less {gb(APU_SYSTEM_BYTES)} GB"
    elif len(each) > 1:
        kept += (
            "; the program divides its memory equally"
            if home.is_even
            else "; each layer is on one GPU"
        )
    return f"{', '.join(each)}, {kept}"


def rooms_text(node: NodeCapacity, home: Home) -> str:
    """Return what each GPU of a home can give to one more model, and why not more."""
    return "; ".join(_room_text(room) for room in device_rooms(home, node.devices))


def facts(node: NodeCapacity, home: Home) -> list[dict[str, Any]]:
    """Return the bytes of each GPU of a home, for programs."""
    return [
        {
            "device": device_title(room.key),
            "usable_bytes": room.usable_bytes,
            "reserved_bytes": room.reserved_bytes,
            "ceiling_bytes": room.ceiling_bytes,
        }
        for room in device_rooms(home, node.devices)
    ]


def _room_text(room: DeviceRoom) -> str:
    free = room.device.free_bytes
    measured = "free memory not measured" if free is None else f"{gb(free)} free"
    return (
        f"{device_title(room.key)}: {gb(room.usable_bytes)} GB available, {measured}, of which "
        f"{gb(room.loading_bytes)} are reserved for loading models; {gb(room.reserved_bytes)} of "
        f"at most {gb(room.ceiling_bytes)} reserved"
    )
