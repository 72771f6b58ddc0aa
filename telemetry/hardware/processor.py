"""Talks to Linux's sensors of the processor: its temperature (hwmon) and its power (RAPL).

psutil reads the same files for temperatures, but takes no root folder and does not read RAPL.
"""

from __future__ import annotations

from pathlib import Path

from bus.hardware.sysfs import hwmons, labelled, number_of, text_of
from bus.wire.accelerators import UntoldFigures
from telemetry.hardware.sensed import EnergyMeter, Sensed, celsius_of, scaled

PACKAGES: tuple[tuple[str, str], ...] = (
    ("coretemp", "Package id"),
    ("k10temp", "Tdie"),
    ("k10temp", "Tctl"),
    ("zenpower", "Tdie"),
    ("cpu_thermal", ""),
)
"""Drivers with a sensor for the whole processor, and the prefixes of its label; the first that
exists counts."""


class ProcessorSensors:
    """Sensors of the processor of a Linux machine; `root` is the root of its file system."""

    name = "processor"
    period_s = 2.0

    def __init__(self, root: Path) -> None:
        self._root = root
        self._energy = EnergyMeter()

    def read(self, at: float) -> Sensed:
        """Return the temperature of the hottest processor package, and the power of all
        packages."""
        power_w, untold = self._power(at)
        return Sensed(cpu_temperature_c=self._temperature(), cpu_power_w=power_w, untold=untold)

    def _temperature(self) -> float | None:
        sensors_by_driver = [
            (text_of(hwmon / "name"), labelled(hwmon, "temp"))
            for hwmon in hwmons(self._root / "sys/class/hwmon")
        ]
        for driver, start in PACKAGES:
            all_c = [
                temperature_c
                for driver_name, sensors in sensors_by_driver
                if driver_name == driver
                for label, value in sensors.items()
                if label.startswith(start)
                and (temperature_c := celsius_of(scaled(value, 1e-3))) is not None
            ]
            if all_c:
                return max(all_c)
        return None

    def _power(self, at: float) -> tuple[float | None, tuple[UntoldFigures, ...]]:
        """Return the power of all processor packages in watts, and the reason if it cannot be read.
        The power is None unless every package reports its own. RAPL has Intel's name for AMD's
        processors, too. Only RAPL domains of whole packages count."""
        total_w: float | None = 0.0
        packages = [
            domain
            for domain in sorted((self._root / "sys/class/powercap").glob("intel-rapl:*"))
            if (text_of(domain / "name") or "").startswith("package")
        ]
        for domain in packages:
            counter = domain / "energy_uj"
            microjoules = number_of(counter)
            if microjoules is None:
                shown = "/" + str(counter.relative_to(self._root))
                why = f"power: {shown} cannot be read; on most systems only root can"
                return None, (UntoldFigures(source=self.name, why=why),)
            power_w = self._energy.watts(domain.name, at, microjoules)
            total_w = None if total_w is None or power_w is None else total_w + power_w
        return (total_w if packages else None), ()
