"""Talks to the disk: what Linux tells in files of `/sys`.

Everything lies under a root, so that recorded files are read like a machine's own. A file that is
not there, or that its driver does not let be read now, tells nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def text_of(path: Path) -> str | None:
    """Return what a file says, without spaces around it; None where that is nothing."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def number_of(path: Path) -> int | None:
    """Return the whole number that a file says; None for none."""
    said = text_of(path)
    return int(said) if said is not None and re.fullmatch(r"-?\d{1,19}", said) else None


def first_number(paths: Iterable[Path]) -> int | None:
    """Return the number that the first of these files says which says one."""
    return next((found for path in paths if (found := number_of(path)) is not None), None)


def hwmons(folder: Path) -> list[Path]:
    """Return the folders of sensors in a folder, in the order of their numbers."""
    return sorted(folder.glob("hwmon*"), key=_by_number)


def labelled(hwmon: Path, sort: str) -> dict[str, int]:
    """Return what the sensors of one sort (`temp`, `power`, `energy`, `freq`) tell, by their
    labels, in the order of their numbers; one without a label goes by its own name (`temp1`)."""
    found: dict[str, int] = {}
    for path in sorted(hwmon.glob(f"{sort}*_input"), key=_by_number):
        value = number_of(path)
        if value is not None:
            sensor = path.name.removesuffix("_input")
            found[text_of(hwmon / f"{sensor}_label") or sensor] = value
    return found


def one_of(sensors: dict[str, int], labels: Iterable[str]) -> int | None:
    """Return what the first of these labels tells that is there, else what the first sensor
    tells."""
    best = (sensors[label] for label in labels if label in sensors)
    return next(best, next(iter(sensors.values()), None))


def _by_number(path: Path) -> tuple[int, str]:
    return len(path.name), path.name
