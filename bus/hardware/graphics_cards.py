"""Talks to the disk: finds Linux's graphics cards of a PCI vendor, and their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bus.hardware.sysfs import text_of
from bus.wire.accelerators import Vendor

PCI_VENDORS: Mapping[Vendor, str] = {"nvidia": "0x10de", "amd": "0x1002", "intel": "0x8086"}
CARD = re.compile(r"card(\d+)")
PCI_NAMES = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")
IN_BRACKETS = re.compile(r"\[(.+)\]")
DISPLAYS = "0x03"
"""Beginning of the PCI class of display devices."""


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card: its folder in `/sys/class/drm`, the folder of its device, its PCI address
    and its device id in the system's form (`0x744c`)."""

    folder: Path
    device: Path
    address: str
    device_id: str

    @property
    def is_asleep(self) -> bool:
        """Return whether the system has suspended the card; reading most files would wake it."""
        return text_of(self.device / "power" / "runtime_status") == "suspended"


def cards_of(root: Path, vendor: str) -> list[Card]:
    """Return the cards of a PCI vendor (such as `0x1002`), in the order of their numbers."""
    cards: list[tuple[int, Card]] = []
    for folder in (root / "sys/class/drm").glob("card*"):
        number, device = CARD.fullmatch(folder.name), folder / "device"
        if number is not None and text_of(device / "vendor") == vendor:
            facts = dict(_pairs(text_of(device / "uevent") or ""))
            address = facts.get("PCI_SLOT_NAME", folder.name)
            card = Card(folder, device, address, text_of(device / "device") or "")
            cards.append((int(number[1]), card))
    return [card for _, card in sorted(cards, key=lambda pair: pair[0])]


def has_pci_display(root: Path, vendor: str) -> bool:
    """Return whether the machine has a display device of a PCI vendor, even without a driver."""
    return any(
        text_of(device / "vendor") == vendor
        and (text_of(device / "class") or "").startswith(DISPLAYS)
        for device in (root / "sys/bus/pci/devices").glob("*")
    )


def pci_name(root: Path, vendor: str, device_id: str) -> str | None:
    """Return the name of a device from the machine's table of PCI ids (`pci.ids`). If the row has a
    product name in brackets, return only that. None if there is no table or no row."""
    wanted = device_id.removeprefix("0x").lower()
    for path in PCI_NAMES:
        try:
            lines = (root / path).read_text(errors="replace").splitlines()
        except OSError:
            continue
        inside = False
        for line in lines:
            if line[:1] not in ("", "\t", "#"):
                if inside:
                    break
                inside = line.startswith(vendor.removeprefix("0x") + " ")
            elif inside and line.startswith(f"\t{wanted} "):
                name = line[1:].partition(" ")[2].strip()
                brackets = IN_BRACKETS.search(name)
                return brackets[1] if brackets else name
    return None


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = (line.partition("=") for line in text.splitlines())
    return [(key, value) for key, equals, value in pairs if equals]
