"""The GPUs of a node as its card lists them, and the memory that a rank has on them.

Pure. `index` counts the GPUs of one vendor in the order of their PCI addresses, as
`CUDA_VISIBLE_DEVICES` (with `CUDA_DEVICE_ORDER=PCI_BUS_ID`) and `HIP_VISIBLE_DEVICES` count.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from bus.wire.accelerators.messages import VENDORS, Vendor
from bus.wire.messages.wire import Message

DeviceKey = tuple[Vendor, int]
"""The vendor and the index of a GPU, which identify it on its node."""
VISIBLE: Mapping[Vendor, str] = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
"""The environment variables that list the GPUs which a process may use."""
IN_ORDER: Mapping[str, str] = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""The environment variable with which CUDA counts GPUs in the order of their PCI addresses."""
COMPUTED_BY: Mapping[str, Vendor] = {"cuda": "nvidia", "rocm": "amd"}
"""The maker of the GPUs on which a backend computes, by the last part of the backend's tag."""


class Device(Message):
    """A GPU. `address`: its PCI address. `driver`: the driver and its version. `total_bytes`: its
    own memory (0: unknown); `free_bytes`: the measured free part of it (None: not measured).
    `gtt_bytes`: the machine's memory that it can map. `unified`: models on it are, in part or
    whole, in the memory of the machine. Such a GPU of Apple has no memory of its own:
    `total_bytes` is then the machine's memory that it may wire."""

    vendor: Vendor
    index: int = Field(ge=0)
    name: str = ""
    address: str = ""
    driver: str = ""
    total_bytes: int = Field(default=0, ge=0)
    free_bytes: int | None = Field(default=None, ge=0)
    gtt_bytes: int = Field(default=0, ge=0)
    unified: bool = False

    @property
    def key(self) -> DeviceKey:
        """Return the name of the GPU on its node."""
        return self.vendor, self.index


class DeviceShare(Message):
    """The memory that a rank reserves on one GPU. `layers`: how many of the model's layers live
    there, the output layer counted as one; 0: the engine divides the model itself."""

    vendor: Vendor
    index: int = Field(ge=0)
    bytes_reserved: int = Field(ge=0)
    layers: int = Field(default=0, ge=0)

    @property
    def key(self) -> DeviceKey:
        """Return the name of the GPU on its node."""
        return self.vendor, self.index


def device_title(key: DeviceKey) -> str:
    """Return the name of a GPU for people: `NVIDIA GPU 0`."""
    return f"{VENDORS[key[0]]} GPU {key[1]}"


def bytes_on(shares: tuple[DeviceShare, ...]) -> int:
    """Return the bytes that a rank reserves on GPUs, all together."""
    return sum(share.bytes_reserved for share in shares)


def shares_memory(vram_bytes: int, gtt_bytes: int, memory_bytes: int) -> bool:
    """Return whether a GPU is part of an APU that may use the machine's memory for models. Such a
    GPU can map all of the machine's memory, and more than it has itself. A dedicated card can map
    some of the machine's memory, too, so one of the two conditions is not enough."""
    return gtt_bytes > vram_bytes and gtt_bytes >= memory_bytes
