"""Talks to the disk: reads the files of Linux's `/sys`.

Paths are relative to a root, so that tests can use recorded files. A file that is missing or cannot
be read now counts as empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def text_of(path: Path) -> str | None:
    """Return the stripped text of a file; None if it is empty or cannot be read."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def number_of(path: Path) -> int | None:
    """Return the whole number in a file; None if there is none."""
    text = text_of(path)
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,19}", text) else None


def first_number(paths: Iterable[Path]) -> int | None:
    """Return the number in the first of these files that contains one."""
    return next((number for path in paths if (number := number_of(path)) is not None), None)


def hwmons(folder: Path) -> list[Path]:
    """Return the `hwmon` folders in a folder, in the order of their numbers."""
    return sorted(folder.glob("hwmon*"), key=_by_number)


def labelled(hwmon: Path, sort: str) -> dict[str, int]:
    """Return the values of the sensors of one sort (`temp`, `power`, `energy`, `freq`) by label, in
    the order of their numbers. A sensor without a label has its own name (`temp1`)."""
    values: dict[str, int] = {}
    for path in sorted(hwmon.glob(f"{sort}*_input"), key=_by_number):
        value = number_of(path)
        if value is not None:
            sensor = path.name.removesuffix("_input")
            values[text_of(hwmon / f"{sensor}_label") or sensor] = value
    return values


def value_of(sensors: dict[str, int], labels: Iterable[str]) -> int | None:
    """Return the value of the first of these labels that exists, else of the first sensor."""
    best = (sensors[label] for label in labels if label in sensors)
    return next(best, next(iter(sensors.values()), None))


def _by_number(path: Path) -> tuple[int, str]:
    return len(path.name), path.name
