"""What a source of sensors is, what one look at it brings, and units from what drivers tell.

Pure: time arrives as `at`. A figure that cannot be (a load over 100 %, a temperature at which no
chip works) is one that is not told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bus.wire.accelerators import AcceleratorReading, UntoldFigures

COLDEST_C, HOTTEST_C = -55.0, 200.0
MOST_W = 20_000.0


@dataclass(frozen=True, slots=True)
class Sensed:
    """What one look brought. `untold` are the figures that this source could tell and does not."""

    accelerators: tuple[AcceleratorReading, ...] = ()
    cpu_temperature_c: float | None = None
    cpu_power_w: float | None = None
    untold: tuple[UntoldFigures, ...] = ()


class SensorSource(Protocol):
    """One way to ask for figures. `period_s` is how long it rests between two looks."""

    name: str
    period_s: float

    def read(self, at: float) -> Sensed:
        """Look once; `at` is the clock's. May wait, and may raise anything: the caller bounds it.
        Without such hardware it brings nothing, and says nothing of it."""
        ...


def ratio_of(percent: float | None) -> float | None:
    """Return percent as a ratio of 0 to 1."""
    return percent / 100.0 if percent is not None and 0 <= percent <= 100 else None


def celsius_of(temperature_c: float | None) -> float | None:
    """Return a temperature, unless no chip works at it."""
    fits = temperature_c is not None and COLDEST_C <= temperature_c <= HOTTEST_C
    return temperature_c if fits else None


def watts_of(power_w: float | None) -> float | None:
    """Return a power, unless no machine takes that much."""
    return power_w if power_w is not None and 0.0 <= power_w <= MOST_W else None


def scaled(value: int | None, unit: float) -> float | None:
    """Return a number of `unit`s, or None for none."""
    return None if value is None else value * unit


class EnergyMeter:
    """Power from counters of energy: what was used between two looks at the same counter."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}

    def watts(self, counter: str, at: float, microjoules: int) -> float | None:
        """Return the mean power since the look before; None for a first look, and where the counter
        has begun anew."""
        before = self._last.get(counter)
        self._last[counter] = (at, microjoules)
        if before is None or at <= before[0]:
            return None
        return watts_of((microjoules - before[1]) * 1e-6 / (at - before[0]))
