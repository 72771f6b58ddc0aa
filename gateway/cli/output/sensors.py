"""Format a node's sensor readings, as one full line or as a few words for a table.

Pure. The full line names the figures that an accelerator does not report. If there is no figure at
all, the text is "unknown".
"""

from __future__ import annotations

from bus.wire.accelerators import VENDORS, AcceleratorReading, HardwareReading
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
