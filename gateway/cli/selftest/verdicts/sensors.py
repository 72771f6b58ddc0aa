"""Judges telemetry's readings: whether they are present, and in the range of real machines.

Pure. A figure that telemetry cannot read on this machine is not applicable; a figure that it
reports must be sane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bus.wire.accelerators import AcceleratorReading, HardwareReading
from gateway.cli.selftest.verdicts.line import Figure, SelftestLine, judged, not_applicable

REPORT = (
    "run `shoal selftest --save FILE` and report the failed check with that file; `shoal doctor` "
    "shows the node's findings"
)
COOLEST_C, HOTTEST_C = 5.0, 110.0
MOST_W = 3_000.0
MOST_LOAD_PER_CORE = 200.0


@dataclass(frozen=True, slots=True)
class SensorFacts:
    """One node reading (its JSON), its hardware reading, and what the system itself reports.
    `has_gpu`: MLX computes on a GPU, so telemetry must report one."""

    node: Mapping[str, Any]
    hardware: HardwareReading | None
    memory_bytes: int
    cores: int
    has_gpu: bool


def sensor_lines(facts: SensorFacts) -> Iterator[SelftestLine]:
    """Check each reading."""
    yield _memory(facts)
    yield _load(facts)
    yield _disk(facts.node)
    hardware = facts.hardware
    if hardware is None:
        yield judged(("sensors", "hardware"), False, "no hardware reading arrived", REPORT)
        return
    why = "; ".join(figure.why for figure in hardware.untold) or "this machine has no such sensor"
    readings = hardware.accelerators
    heat = [hardware.cpu_temperature_c, *(reading.temperature_c for reading in readings)]
    yield _ranged("temperature", heat, (COOLEST_C, HOTTEST_C), "°C", why)
    power = [hardware.cpu_power_w, *(reading.power_w for reading in readings)]
    yield _ranged("power", power, (0.0, MOST_W), "W", why)
    yield from _gpus(facts, why)


def _memory(facts: SensorFacts) -> SelftestLine:
    total = int(facts.node["memory_total_bytes"])
    available = int(facts.node["memory_available_bytes"])
    off = abs(total - facts.memory_bytes) / facts.memory_bytes
    text = f"{available / 1e9:.1f} of {total / 1e9:.1f} GB available"
    figures: dict[str, Figure] = {"total_bytes": total, "available_bytes": available}
    is_good = off <= 0.02 and 0 < available <= total
    return judged(("sensors", "memory"), is_good, text, REPORT, figures)


def _load(facts: SensorFacts) -> SelftestLine:
    ratio, load = float(facts.node["cpu_ratio"]), float(facts.node["load_1m"])
    text = f"processor {ratio:.0%} busy, load {load:.1f} on {facts.cores} cores"
    figures: dict[str, Figure] = {"cpu_ratio": ratio, "load_1m": load, "cores": facts.cores}
    is_good = 0.0 <= ratio <= 1.0 and 0.0 <= load <= MOST_LOAD_PER_CORE * facts.cores
    return judged(("sensors", "load"), is_good, text, REPORT, figures)


def _disk(node: Mapping[str, Any]) -> SelftestLine:
    total, free = int(node["disk_total_bytes"]), int(node["disk_free_bytes"])
    text = f"{free / 1e9:.0f} of {total / 1e9:.0f} GB free"
    figures: dict[str, Figure] = {"total_bytes": total, "free_bytes": free}
    return judged(("sensors", "disk"), 0 <= free <= total and total > 0, text, REPORT, figures)


def _ranged(
    part: str, values: list[float | None], limits: tuple[float, float], unit: str, why: str
) -> SelftestLine:
    """Judge the reported values of one kind; without any, the part is not applicable."""
    reported = [value for value in values if value is not None]
    if not reported:
        return not_applicable(("sensors", part), why)
    low, high = limits
    text = f"{', '.join(f'{value:.0f}' for value in reported)} {unit} (rule: {low:g} to {high:g})"
    figures: dict[str, Figure] = {"least": min(reported), "most": max(reported)}
    is_good = all(low <= value <= high for value in reported)
    return judged(("sensors", part), is_good, text, REPORT, figures)


def _gpus(facts: SensorFacts, why: str) -> Iterator[SelftestLine]:
    readings = () if facts.hardware is None else facts.hardware.accelerators
    if not readings:
        if facts.has_gpu:
            text = f"MLX computes on a GPU, but telemetry reports none ({why})"
            yield judged(("sensors", "GPU"), False, text, REPORT)
        else:
            yield not_applicable(("sensors", "GPU"), "MLX computes on the processor here")
        return
    for reading in readings:
        yield _gpu(reading)


def _gpu(reading: AcceleratorReading) -> SelftestLine:
    own = (reading.vram_used_bytes, reading.vram_total_bytes)
    used, total = own if own[0] is not None else (reading.gtt_used_bytes, reading.gtt_total_bytes)
    busy = reading.utilisation_ratio
    parts = [
        reading.name or reading.vendor,
        "load unknown" if busy is None else f"{busy:.0%} busy",
        "memory unknown" if used is None else f"{used / 1e9:.1f} GB used",
    ]
    figures: dict[str, Figure] = {
        "name": reading.name or reading.vendor,
        "busy_ratio": busy,
        "used_bytes": used,
        "total_bytes": total,
        "clock_mhz": reading.clock_mhz,
    }
    is_good = busy is not None and used is not None and (total is None or used <= total)
    return judged(("sensors", "GPU"), is_good, ", ".join(parts), REPORT, figures)
