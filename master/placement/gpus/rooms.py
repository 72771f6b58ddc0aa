"""The memory of a node's GPUs: what is reserved on each, and the GPUs on which a backend keeps a
model.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bus.models.gguf import LLAMA_TAG
from bus.models.tasks import COMMAND_TAG
from bus.wire.accelerators import COMPUTED_BY, Device, DeviceKey
from bus.wire.cards import ModelCard, NodeCard

KEPT_BYTES = 512 << 20
"""Memory that stays free on each GPU."""
APU_SYSTEM_BYTES = 16_000_000_000
"""Memory that an APU leaves to the rest of the machine."""


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """A GPU with its reservations: their bytes, and the bytes that are not allocated yet (of
    loading ranks)."""

    device: Device
    reserved_bytes: int = 0
    loading_bytes: int = 0

    @property
    def key(self) -> DeviceKey:
        """Return the name of the GPU on its node."""
        return self.device.key

    @property
    def ceiling_bytes(self) -> int:
        """Return the limit in bytes for all models together on this GPU."""
        return max(0, self.device.total_bytes - KEPT_BYTES)

    @property
    def usable_bytes(self) -> int:
        """Return the bytes available to one more model. If the free memory is not measured, only
        reservations count."""
        left = self.ceiling_bytes - self.reserved_bytes
        free = self.device.free_bytes
        if free is not None:
            left = min(left, free - self.loading_bytes - KEPT_BYTES)
        return max(0, left)


@dataclass(frozen=True, slots=True)
class Home:
    """The GPUs of a node on which a backend keeps a model, in index order.

    `parts`: the relative sizes of the pieces that cannot be divided (layers, and the output layer),
    in order; empty: the model is one piece. `is_even`: the program divides its memory equally over
    all these GPUs. `spills`: the one GPU is part of an APU, and what its own memory does not hold
    is in the memory of the machine.
    """

    keys: tuple[DeviceKey, ...]
    parts: tuple[int, ...] = ()
    is_even: bool = False
    spills: bool = False


def device_rooms(home: Home, devices: Iterable[DeviceRoom]) -> list[DeviceRoom]:
    """Return the GPUs of `home` with their reservations, in index order. GPUs that `devices` lacks
    are left out."""
    by_key = {room.key: room for room in devices}
    return [by_key[key] for key in home.keys if key in by_key]


def home_of(card: NodeCard, backend: str, model: ModelCard | None = None) -> Home | str | None:
    """Return the GPUs on which a backend keeps a model on this node. None: in the machine's memory,
    as on Macs, or on nodes that list no GPU. A text: why the GPUs that it needs are not there.

    MLX uses the first NVIDIA GPU, and llama-server all GPUs of its maker, or else an APU. A program
    of `engines.toml` uses the GPUs that its table names.
    """
    if backend.startswith(COMMAND_TAG):
        return None if model is None or not card.devices else _home_of_program(card, model.gpus)
    vendor = COMPUTED_BY.get(backend.rpartition("-")[2])
    there = [device for device in card.devices if device.vendor == vendor and device.total_bytes]
    if vendor is None or not there:
        return None
    if not backend.startswith(LLAMA_TAG):
        return Home((there[0].key,))
    own = tuple(device.key for device in there if not device.unified)
    return Home(own) if own else Home((there[0].key,), spills=True)


def _home_of_program(card: NodeCard, gpus: Sequence[int]) -> Home | str | None:
    if not gpus:
        return None
    own = [device for device in card.devices if device.total_bytes and not device.unified]
    vendors = [device.vendor for device in own]
    vendor = "nvidia" if "nvidia" in vendors else next(iter(vendors), None)
    there = {device.index: device.key for device in own if device.vendor == vendor}
    missing = sorted(set(gpus) - there.keys())
    if missing and any(device.unified for device in card.devices) and not there:
        return None
    if missing:
        numbers = ", ".join(map(str, missing))
        listed = ", ".join(map(str, sorted(there))) or "none"
        return f"has no GPU {numbers}, which engines.toml names (`gpus`); its GPUs: {listed}"
    return Home(tuple(there[gpu] for gpu in sorted(set(gpus))), is_even=True)
