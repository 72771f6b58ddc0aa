"""Sensor readings of a node's accelerators and processor, in one form for all vendors.

Pure. The latest reading wins. Readings are never part of the cluster's state. None means unknown,
never 0.
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
"""Display names of the vendors."""


class AcceleratorReading(Message):
    """One accelerator. `device` is the system's name for it: its PCI address, or its entry in
    macOS's registry; `name` is the vendor's name. `vram`: its own memory. `gtt`: the machine's
    memory that it has mapped. For a device without memory of its own, as on a Mac, `gtt` is all the
    memory that it uses."""

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
    """Figures that a sensor source cannot report, and why: a missing package or driver, a missing
    permission, or an error."""

    source: str
    why: str


class HardwareReading(Message):
    """A node's accelerators, and the temperature (hottest package) and power (all packages) of its
    processor."""

    kind: Literal["hardware_reading"] = "hardware_reading"
    node: NodeId
    accelerators: tuple[AcceleratorReading, ...] = ()
    cpu_temperature_c: float | None = None
    cpu_power_w: float | None = Field(default=None, ge=0.0)
    untold: tuple[UntoldFigures, ...] = ()
    measured_at_s: float
