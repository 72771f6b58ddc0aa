"""Talks to macOS's `ioreg`, which reports load and memory of the GPU to every user.

Only root gets the power, temperature and clock of Apple's chips, from `powermetrics`.
"""

from __future__ import annotations

import plistlib
from collections.abc import Callable
from typing import Any, cast

from bus.process.tools import asked
from bus.wire.accelerators import AcceleratorReading, UntoldFigures, Vendor
from telemetry.hardware.sensed import Sensed, celsius_of, ratio_of, watts_of

COMMAND = ("/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator", "-a")
IOREG_S = 5.0
POWERMETRICS = (
    "power, temperature and clock of Apple's chips: only root can read them (`powermetrics`)"
)
MAKERS: tuple[tuple[str, Vendor], ...] = (
    ("agx", "apple"),
    ("apple", "apple"),
    ("amd", "amd"),
    ("radeon", "amd"),
    ("intel", "intel"),
    ("nv", "nvidia"),
)
"""Prefixes of the class or model name of a GPU, each with the maker of the GPU."""


class MacAccelerators:
    """The GPUs of a Mac. `ask` runs `ioreg` and returns its output."""

    name = "macos"
    period_s = 5.0

    def __init__(self, ask: Callable[[], str] = lambda: asked(*COMMAND, timeout_s=IOREG_S)) -> None:
        self._ask = ask

    def read(self, at: float) -> Sensed:
        """Return the figures of every GPU; `untold` names the figures that only root can read.
        Raises RuntimeError if `ioreg` prints nothing."""
        printed = self._ask()
        if not printed:
            raise RuntimeError(f"`{' '.join(COMMAND)}` prints nothing")
        readings = accelerators_in(printed.encode())
        return Sensed(readings, untold=(UntoldFigures(source=self.name, why=POWERMETRICS),))


def accelerators_in(printed: bytes) -> tuple[AcceleratorReading, ...]:
    """Return the GPUs in `ioreg`'s property list; entries without statistics are skipped."""
    entries = cast(list[dict[str, Any]], plistlib.loads(printed))
    readings = (_accelerator(entry) for entry in entries if "PerformanceStatistics" in entry)
    return tuple(reading for reading in readings if reading is not None)


def _accelerator(entry: dict[str, Any]) -> AcceleratorReading | None:
    statistics = cast(dict[str, Any], entry["PerformanceStatistics"])
    sort = _text(entry.get("IOClass")) or _text(entry.get("IORegistryEntryName"))
    model = _text(entry.get("model"))
    vendor = _vendor(model, sort)
    if vendor is None:
        return None
    used, free = _count(statistics, "vramUsedBytes"), _count(statistics, "vramFreeBytes")
    return AcceleratorReading(
        vendor=vendor,
        device=sort,
        name=model or None,
        utilisation_ratio=ratio_of(_count(statistics, "Device Utilization %")),
        vram_total_bytes=None if used is None or free is None else used + free,
        vram_used_bytes=used,
        gtt_used_bytes=_count(statistics, "In use system memory"),
        power_w=watts_of(_count(statistics, "Total Power(W)")),
        temperature_c=celsius_of(_count(statistics, "Temperature(C)")),
        clock_mhz=_count(statistics, "Core Clock(MHz)"),
    )


def _vendor(*texts: str) -> Vendor | None:
    for text in texts:
        for start, vendor in MAKERS:
            if text.lower().startswith(start):
                return vendor
    return None


def _count(statistics: dict[str, Any], key: str) -> int | None:
    value = statistics.get(key)
    return value if isinstance(value, int) and value >= 0 else None


def _text(value: object) -> str:
    """Return a value of the registry as a string. Older drivers store bytes that end in a zero
    byte."""
    if isinstance(value, bytes):
        return value.rstrip(b"\0").decode(errors="replace")
    return value if isinstance(value, str) else ""
