"""Talks to macOS's `ioreg`: load and memory of the GPU, which it tells to everybody.

Power, temperature and clock of Apple's chips are told by `powermetrics`, to root alone.
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
"""What the class or the model of a GPU begins with, by its maker."""


class MacAccelerators:
    """The GPUs of a Mac, as `ioreg` tells them: `ask` runs it and gives what it prints."""

    name = "macos"
    period_s = 5.0

    def __init__(self, ask: Callable[[], str] = lambda: asked(*COMMAND, timeout_s=IOREG_S)) -> None:
        self._ask = ask

    def read(self, at: float) -> Sensed:
        """Return every GPU, and what would take root to know."""
        printed = self._ask()
        if not printed:
            raise RuntimeError(f"`{' '.join(COMMAND)}` prints nothing")
        found = accelerators_in(printed.encode())
        return Sensed(found, untold=(UntoldFigures(source=self.name, why=POWERMETRICS),))


def accelerators_in(printed: bytes) -> tuple[AcceleratorReading, ...]:
    """Return the GPUs in `ioreg`'s property list; entries that measure nothing are none."""
    entries = cast(list[dict[str, Any]], plistlib.loads(printed))
    found = (_accelerator(entry) for entry in entries if "PerformanceStatistics" in entry)
    return tuple(one for one in found if one is not None)


def _accelerator(entry: dict[str, Any]) -> AcceleratorReading | None:
    told = cast(dict[str, Any], entry["PerformanceStatistics"])
    sort = _text(entry.get("IOClass")) or _text(entry.get("IORegistryEntryName"))
    model = _text(entry.get("model"))
    vendor = _vendor(model, sort)
    if vendor is None:
        return None
    used, free = _count(told, "vramUsedBytes"), _count(told, "vramFreeBytes")
    return AcceleratorReading(
        vendor=vendor,
        device=sort,
        name=model or None,
        utilisation_ratio=ratio_of(_count(told, "Device Utilization %")),
        vram_total_bytes=None if used is None or free is None else used + free,
        vram_used_bytes=used,
        gtt_used_bytes=_count(told, "In use system memory"),
        power_w=watts_of(_count(told, "Total Power(W)")),
        temperature_c=celsius_of(_count(told, "Temperature(C)")),
        clock_mhz=_count(told, "Core Clock(MHz)"),
    )


def _vendor(*said: str) -> Vendor | None:
    for text in said:
        for start, vendor in MAKERS:
            if text.lower().startswith(start):
                return vendor
    return None


def _count(told: dict[str, Any], key: str) -> int | None:
    value = told.get(key)
    return value if isinstance(value, int) and value >= 0 else None


def _text(said: object) -> str:
    """Return text, which older drivers keep as bytes that end in a zero."""
    if isinstance(said, bytes):
        return said.rstrip(b"\0").decode(errors="replace")
    return said if isinstance(said, str) else ""
