"""The memory of a node's GPUs as text and as facts, for refusals.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bus.wire.accelerators import device_title
from master.placement.gpus.rooms import APU_SYSTEM_BYTES, KEPT_BYTES, DeviceRoom, Home
from master.placement.memory_cost import gb


def ceiling_text(home: Home, rooms: Sequence[DeviceRoom]) -> str:
    """Return the names and sizes of the GPUs that hold a model, and which part of their memory
    models can use."""
    each = [f"{device_title(room.key)} has {gb(room.device.total_bytes)} GB" for room in rooms]
    reserve = f"of which {gb(KEPT_BYTES)} GB stay free on each"
    if home.spills:
        reserve += f", and maps the machine's memory except {gb(APU_SYSTEM_BYTES)} GB"
    elif len(each) > 1:
        reserve += (
            "; the program divides its memory equally"
            if home.is_even
            else "; each layer is on one GPU"
        )
    return f"{', '.join(each)}, {reserve}"


def rooms_text(rooms: Sequence[DeviceRoom]) -> str:
    """Return, for a refusal, how much memory each of these GPUs can give to one more model, and its
    limit. The figures of the machine's own memory follow the text. Empty without GPUs."""
    texts = [f"{_room_text(room)}; " for room in rooms]
    return f"{''.join(texts)}memory of the machine: " if texts else ""


def facts(rooms: Sequence[DeviceRoom]) -> dict[str, Any]:
    """Return the memory figures of each of these GPUs, for the `facts` of a refusal; empty without
    GPUs."""
    devices = [
        {
            "device": device_title(room.key),
            "usable_bytes": room.usable_bytes,
            "reserved_bytes": room.reserved_bytes,
            "ceiling_bytes": room.ceiling_bytes,
        }
        for room in rooms
    ]
    return {"devices": devices} if devices else {}


def _room_text(room: DeviceRoom) -> str:
    free = room.device.free_bytes
    measure = "free memory not measured" if free is None else f"{gb(free)} free"
    return (
        f"{device_title(room.key)}: {gb(room.usable_bytes)} GB available, {measure}, of which "
        f"{gb(room.loading_bytes)} are reserved for loading models; {gb(room.reserved_bytes)} of "
        f"at most {gb(room.ceiling_bytes)} reserved"
    )
