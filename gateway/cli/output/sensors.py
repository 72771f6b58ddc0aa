"""What a node's sensors tell, in words: a line of all, and a few words for a table.

Pure. Of an accelerator the line names what is not told; where nothing is, it is "unknown".
"""

from __future__ import annotations

from bus.wire.accelerators import VENDORS, AcceleratorReading, HardwareReading
from gateway.cli.output.amounts import size

UNKNOWN = "unknown"


def in_a_line(reading: HardwareReading | None) -> str:
    """Return what there is to say of each accelerator, then of the processor."""
    if reading is None:
        return UNKNOWN
    accelerators = [_whole(accelerator) for accelerator in reading.accelerators]
    processor = _told(reading.cpu_power_w, reading.cpu_temperature_c)
    if processor:
        accelerators.append(f"processor: {', '.join(processor)}")
    return "; ".join(accelerators) or UNKNOWN


def in_short(reading: HardwareReading | None) -> str:
    """Return what is told of the accelerators, as a table has room for."""
    found = () if reading is None else reading.accelerators
    return "; ".join(", ".join(_figures(one)) or UNKNOWN for one in found) or UNKNOWN


def _whole(one: AcceleratorReading) -> str:
    name = one.name or f"{VENDORS[one.vendor]} GPU"
    lacking = {
        "load": one.utilisation_ratio is None,
        "memory": not _memory(one),
        "power": one.power_w is None,
        "temperature": one.temperature_c is None,
    }
    untold = [figure for figure, is_lacking in lacking.items() if is_lacking]
    clock = [] if one.clock_mhz is None else [f"{one.clock_mhz:.0f} MHz"]
    unknown = [f"{', '.join(untold)} {UNKNOWN}"] if untold else []
    return f"{name}: {', '.join([*_figures(one), *clock, *unknown])}"


def _figures(one: AcceleratorReading) -> list[str]:
    load = [] if one.utilisation_ratio is None else [f"{one.utilisation_ratio:.0%} busy"]
    return [*load, *_memory(one), *_told(one.power_w, one.temperature_c)]


def _memory(one: AcceleratorReading) -> list[str]:
    """Return the memory of which it uses most, its own or the machine's."""
    own = (one.vram_used_bytes, one.vram_total_bytes)
    mapped = (one.gtt_used_bytes, one.gtt_total_bytes)
    used, total = max(own, mapped, key=lambda pair: -1 if pair[0] is None else pair[0])
    if used is None:
        return []
    return [size(used) if total is None else f"{size(used)} of {size(total)}"]


def _told(power_w: float | None, temperature_c: float | None) -> list[str]:
    power = [] if power_w is None else [f"{power_w:.0f} W"]
    return power if temperature_c is None else [*power, f"{temperature_c:.0f} °C"]
