"""Talks to i915's and xe's files in `/sys`: clock, power and temperature of Intel's GPUs.

In `/sys` neither driver reports the load of a GPU or its used memory.
"""

from __future__ import annotations

from pathlib import Path

from bus.hardware.graphics_cards import Card
from bus.hardware.sysfs import first_number, hwmons, labelled, number_of, value_of
from telemetry.hardware.cards import DrmCards, Figures
from telemetry.hardware.sensed import EnergyMeter, Sensed, celsius_of, scaled

WHOLE = ("card", "pkg")
"""Labels of the sensors that measure a whole card, best first."""


class IntelCards:
    """The Intel GPUs of a Linux machine; `root` is the root of its file system."""

    name = "intel"
    period_s = 2.0

    def __init__(self, root: Path) -> None:
        self._cards = DrmCards(root, "intel")
        self._energy = EnergyMeter()

    def read(self, at: float) -> Sensed:
        """Return the figures of every Intel GPU. Does not block."""
        return self._cards.look(lambda card: self._figures(card, at))

    def _figures(self, card: Card, at: float) -> Figures:
        sensors = next(iter(hwmons(card.device / "hwmon")), card.device / "hwmon")
        energy_uj = value_of(labelled(sensors, "energy"), WHOLE)
        clocks = (
            card.folder / "gt_act_freq_mhz",
            card.folder / "gt/gt0/rps_act_freq_mhz",
            card.device / "tile0/gt0/freq0/act_freq",
        )
        watts = None if energy_uj is None else self._energy.watts(card.address, at, energy_uj)
        return {
            "vram_total_bytes": number_of(card.folder / "lmem_total_bytes"),
            "power_w": watts,
            "temperature_c": celsius_of(scaled(value_of(labelled(sensors, "temp"), WHOLE), 1e-3)),
            "clock_mhz": scaled(first_number(clocks), 1.0),
        }
