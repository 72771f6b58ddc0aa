"""Talks to the disk: reads the figures (load, memory, temperature, ...) of Linux's graphics cards
of one vendor. A sleeping card is not woken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bus.hardware.graphics_cards import PCI_VENDORS, Card, cards_of, pci_name
from bus.wire.accelerators import AcceleratorReading, UntoldFigures, Vendor
from telemetry.hardware.sensed import Sensed

Figures = Mapping[str, float | str | None]


class DrmCards:
    """The cards of one vendor on a Linux machine; `root` is the root of its file system."""

    def __init__(self, root: Path, vendor: Vendor) -> None:
        self._root = root
        self._vendor: Vendor = vendor
        self._names: dict[str, str | None] = {}

    def look(self, figures: Callable[[Card], Figures]) -> Sensed:
        """Return a reading of each card; `figures` reads a card that is awake. A sleeping card has
        only its name, and `untold` says why."""
        readings: list[AcceleratorReading] = []
        untold: list[UntoldFigures] = []
        for card in cards_of(self._root, PCI_VENDORS[self._vendor]):
            values: Figures = {}
            if card.is_asleep:
                why = f"{card.address} is powered down while unused, and shoal does not wake it"
                untold.append(UntoldFigures(source=self._vendor, why=why))
            else:
                values = figures(card)
            fields = {
                "vendor": self._vendor,
                "device": card.address,
                "name": self._name_of(card.device_id),
                **{name: value for name, value in values.items() if value is not None},
            }
            readings.append(AcceleratorReading.model_validate(fields))
        return Sensed(tuple(readings), untold=tuple(untold))

    def _name_of(self, device_id: str) -> str | None:
        if device_id not in self._names:
            vendor_id = PCI_VENDORS[self._vendor]
            self._names[device_id] = pci_name(self._root, vendor_id, device_id)
        return self._names[device_id]
