"""The protocol of sensor sources, the figures of one read, and the conversion of drivers' units.

Pure: time arrives as `at`. An impossible figure (a load over 100 %, a temperature at which no chip
works) counts as missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bus.wire.accelerators import AcceleratorReading, UntoldFigures

COLDEST_C, HOTTEST_C = -55.0, 200.0
MOST_W = 20_000.0


@dataclass(frozen=True, slots=True)
class Sensed:
    """The figures of one read of a sensor source. `untold` are figures that this source lacks, with
    the reasons."""

    accelerators: tuple[AcceleratorReading, ...] = ()
    cpu_temperature_c: float | None = None
    cpu_power_w: float | None = None
    untold: tuple[UntoldFigures, ...] = ()


class SensorSource(Protocol):
    """A driver or tool that reports figures. `period_s` is the pause between two reads."""

    name: str
    period_s: float

    def read(self, at: float) -> Sensed:
        """Read the sensors once; `at` is a monotonic instant. May block, and may raise anything.
        Without such hardware the result is empty."""
        ...


def ratio_of(percent: float | None) -> float | None:
    """Return a percentage as a ratio from 0 to 1; None if it is out of range."""
    return percent / 100.0 if percent is not None and 0 <= percent <= 100 else None


def celsius_of(temperature_c: float | None) -> float | None:
    """Return the temperature; None if it is outside the range in which chips work."""
    fits = temperature_c is not None and COLDEST_C <= temperature_c <= HOTTEST_C
    return temperature_c if fits else None


def watts_of(power_w: float | None) -> float | None:
    """Return the power; None if no machine draws that much."""
    return power_w if power_w is not None and 0.0 <= power_w <= MOST_W else None


def scaled(value: int | None, unit: float) -> float | None:
    """Return `value` times `unit`; None if `value` is None."""
    return None if value is None else value * unit


class EnergyMeter:
    """Computes power from energy counters: the energy between two reads of a counter, divided by
    the time."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}

    def watts(self, counter: str, at: float, microjoules: int) -> float | None:
        """Return the mean power since the previous read of a counter; None for the first read, or
        if the counter has restarted."""
        last = self._last.get(counter)
        self._last[counter] = (at, microjoules)
        if last is None or at <= last[0]:
            return None
        return watts_of((microjoules - last[1]) * 1e-6 / (at - last[0]))
