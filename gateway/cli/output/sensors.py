"""Format a node's GPUs and sensor readings, as full lines or as a few words for a table, and what a
rank reserves on GPUs.

Pure. The full line names the figures that an accelerator does not report. If there is no figure at
all, the text is "unknown".
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.wire.accelerators import (
    VENDORS,
    AcceleratorReading,
    Device,
    DeviceShare,
    HardwareReading,
    device_title,
)
from gateway.cli.output.amounts import size

UNKNOWN = "unknown"


def in_a_line(reading: HardwareReading | None) -> str:
    """Return the figures of each accelerator, then of the processor."""
    if reading is None:
        return UNKNOWN
    accelerators = [_whole(accelerator) for accelerator in reading.accelerators]
    processor = _power_and_heat(reading.cpu_power_w, reading.cpu_temperature_c)
    if processor:
        accelerators.append(f"processor: {', '.join(processor)}")
    return "; ".join(accelerators) or UNKNOWN


def in_short(reading: HardwareReading | None) -> str:
    """Return the accelerators' figures, short enough for a table."""
    accelerators = () if reading is None else reading.accelerators
    return (
        "; ".join(", ".join(_figures(accelerator)) or UNKNOWN for accelerator in accelerators)
        or UNKNOWN
    )


def _whole(reading: AcceleratorReading) -> str:
    name = reading.name or f"{VENDORS[reading.vendor]} GPU"
    lacking = {
        "load": reading.utilisation_ratio is None,
        "memory": not _memory(reading),
        "power": reading.power_w is None,
        "temperature": reading.temperature_c is None,
    }
    missing = [figure for figure, is_lacking in lacking.items() if is_lacking]
    clock = [] if reading.clock_mhz is None else [f"{reading.clock_mhz:.0f} MHz"]
    unknown = [f"{', '.join(missing)} {UNKNOWN}"] if missing else []
    return f"{name}: {', '.join([*_figures(reading), *clock, *unknown])}"


def _figures(reading: AcceleratorReading) -> list[str]:
    load = [] if reading.utilisation_ratio is None else [f"{reading.utilisation_ratio:.0%} busy"]
    return [*load, *_memory(reading), *_power_and_heat(reading.power_w, reading.temperature_c)]


def _memory(reading: AcceleratorReading) -> list[str]:
    """Return the memory in use: of the accelerator's own memory or of the machine's memory,
    whichever is larger."""
    own = (reading.vram_used_bytes, reading.vram_total_bytes)
    mapped = (reading.gtt_used_bytes, reading.gtt_total_bytes)
    used, total = max(own, mapped, key=lambda pair: -1 if pair[0] is None else pair[0])
    if used is None:
        return []
    return [size(used) if total is None else f"{size(used)} of {size(total)}"]


def _power_and_heat(power_w: float | None, temperature_c: float | None) -> list[str]:
    power = [] if power_w is None else [f"{power_w:.0f} W"]
    return power if temperature_c is None else [*power, f"{temperature_c:.0f} °C"]


def device_text(device: Device) -> str:
    """Return a GPU with its memory: `NVIDIA GPU 0 (RTX 3090, driver 550.54): 22 GB of 24 GB free`.
    A GPU without memory of its own uses the memory of the machine."""
    details = [device.name, f"driver {device.driver}" if device.driver else ""]
    named = ", ".join(word for word in details if word)
    title = f"{device_title(device.key)} ({named})" if named else device_title(device.key)
    if device.unified and not device.gtt_bytes:
        total = f", at most {size(device.total_bytes)}" if device.total_bytes else ""
        return f"{title}: memory of the machine{total}"
    free = "free memory unknown" if device.free_bytes is None else f"{size(device.free_bytes)} free"
    mapped = f", maps {size(device.gtt_bytes)} of the machine" if device.unified else ""
    return f"{title}: {size(device.total_bytes)}, {free}{mapped}"


def shares_text(shares: Iterable[DeviceShare]) -> str:
    """Return what a rank reserves on each GPU: `NVIDIA GPU 0 21 GB (20 layers), NVIDIA GPU 1 9 GB
    (13 layers)`; empty if it reserves nothing there."""
    return ", ".join(
        f"{device_title(share.key)} {size(share.bytes_reserved)}"
        + (f" ({share.layers} layers)" if share.layers else "")
        for share in shares
    )
