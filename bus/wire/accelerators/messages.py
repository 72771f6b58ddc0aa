"""What the sensors of a node tell of its accelerators and its processor, in one form for all makes.

Pure. Latest wins; none of it is ever in the state. None: it is not told, which is never the same
as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from bus.wire.ids import NodeId
from bus.wire.messages.wire import Message

Vendor = Literal["nvidia", "amd", "intel", "apple"]
VENDORS: Mapping[Vendor, str] = {
    "nvidia": "NVIDIA",
    "amd": "AMD",
    "intel": "Intel",
    "apple": "Apple",
}
"""What the makers of accelerators are called."""


class AcceleratorReading(Message):
    """One accelerator. `device` is what the system calls it: its PCI address, or its entry in
    macOS's registry; `name` is its maker's. `vram` is memory of its own, `gtt` that of the machine
    which it has mapped: all that it uses, where it has none of its own, as on a Mac."""

    vendor: Vendor
    device: str
    name: str | None = None
    utilisation_ratio: float | None = Field(default=None, ge=0.0, le=1.0)
    vram_total_bytes: int | None = Field(default=None, ge=0)
    vram_used_bytes: int | None = Field(default=None, ge=0)
    gtt_total_bytes: int | None = Field(default=None, ge=0)
    gtt_used_bytes: int | None = Field(default=None, ge=0)
    power_w: float | None = Field(default=None, ge=0.0)
    temperature_c: float | None = None
    clock_mhz: float | None = Field(default=None, ge=0.0)


class UntoldFigures(Message):
    """Figures that a source could have told and did not, and why: what is lacking, who may read
    them, or what went wrong."""

    source: str
    why: str


class HardwareReading(Message):
    """A node's accelerators, and the temperature and power of its processor: of its hottest
    package, and of all of them together."""

    kind: Literal["hardware_reading"] = "hardware_reading"
    node: NodeId
    accelerators: tuple[AcceleratorReading, ...] = ()
    cpu_temperature_c: float | None = None
    cpu_power_w: float | None = Field(default=None, ge=0.0)
    untold: tuple[UntoldFigures, ...] = ()
    measured_at_s: float
