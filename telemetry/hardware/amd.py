"""Talks to amdgpu's files in `/sys`: load, memory, power, temperature and clock of AMD's GPUs."""

from __future__ import annotations

import re
from pathlib import Path

from bus.hardware.graphics_cards import Card
from bus.hardware.sysfs import first_number, hwmons, labelled, number_of, text_of, value_of
from telemetry.hardware.cards import DrmCards, Figures
from telemetry.hardware.sensed import Sensed, celsius_of, ratio_of, scaled, watts_of

CLOCK_NOW = re.compile(r":\s*(\d+)\s*MHz\s*\*", re.IGNORECASE)
"""Matches the line of `pp_dpm_sclk` that a star marks: the current clock."""
WHOLE = ("edge", "junction")
"""Labels of the sensors that measure the temperature of a whole GPU, best first."""


class AmdCards:
    """The AMD GPUs of a Linux machine; `root` is the root of its file system."""

    name = "amd"
    period_s = 2.0

    def __init__(self, root: Path) -> None:
        self._cards = DrmCards(root, "amd")

    def read(self, at: float) -> Sensed:
        """Return the figures of every AMD GPU. Does not block."""
        return self._cards.look(_figures)


def _figures(card: Card) -> Figures:
    device = card.device
    sensors = next(iter(hwmons(device / "hwmon")), device / "hwmon")
    power_uw = first_number((sensors / "power1_average", sensors / "power1_input"))
    return {
        "name": text_of(device / "product_name"),
        "utilisation_ratio": ratio_of(number_of(device / "gpu_busy_percent")),
        "vram_total_bytes": number_of(device / "mem_info_vram_total"),
        "vram_used_bytes": number_of(device / "mem_info_vram_used"),
        "gtt_total_bytes": number_of(device / "mem_info_gtt_total"),
        "gtt_used_bytes": number_of(device / "mem_info_gtt_used"),
        "power_w": watts_of(scaled(power_uw, 1e-6)),
        "temperature_c": celsius_of(scaled(value_of(labelled(sensors, "temp"), WHOLE), 1e-3)),
        "clock_mhz": _clock(device, sensors),
    }


def _clock(device: Path, sensors: Path) -> float | None:
    """Return the shader clock in MHz: from the table of clock states, else from the sensor."""
    marked = CLOCK_NOW.search(text_of(device / "pp_dpm_sclk") or "")
    return float(marked[1]) if marked else scaled(labelled(sensors, "freq").get("sclk"), 1e-6)
