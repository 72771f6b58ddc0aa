"""Talks to the disk: the table of BLAS measurements, and the choices in force.

The table is one file for a machine and its libraries. The choices in force are in another file,
which stays when a library is updated. All homes of the user share both files.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from conf.blas.choice import Choice, Measured

IN_FORCE = "blas-in-force.json"


@dataclass(frozen=True, slots=True)
class Table:
    """The measurements; `trouble` says why some are missing. `measured_at_s` is wall time.
    `waited`: the share of the time for which threads waited for a core. `is_right`: a library
    computes right products, as far as is known."""

    measured: tuple[Measured, ...] = ()
    trouble: str = ""
    measured_at_s: float = 0.0
    waited: float = 0.0
    is_right: bool = True


def told_measurement(table: Table) -> str:
    """Return a text that says when a table was measured, and how much other programs disturbed
    that."""
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(table.measured_at_s))
    how = "disturbed" if table.trouble else "undisturbed"
    return f"measured {at}, {how} (threads waited {table.waited:.0%} of the time for a core)"


def better_table(old: Table | None, new: Table) -> Table:
    """Return the new table, but the old one if the new one has trouble and fewer figures."""
    worse = old is not None and new.trouble and len(new.measured) < len(old.measured)
    return old if worse and old is not None else new


@contextmanager
def alone(file: Path) -> Generator[None]:
    """Hold the lock of a file within the context, so that other starting nodes do not make the same
    file."""
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remembered(file: Path) -> Table | None:
    """Return the table in a file; None if there is none."""
    try:
        return _tables().validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None


def remember(file: Path, table: Table) -> None:
    """Store a table. An error of the disk, such as a full one, is ignored, so that the node
    starts."""
    _write(file, _tables().dump_json(table))


def age_s(file: Path) -> float:
    """Return the seconds since a table was stored; infinite for an impossible time."""
    age = time.time() - file.stat().st_mtime
    return age if age >= 0 else float("inf")


def in_force(folder: Path) -> Mapping[str, Choice]:
    """Return the choices in force, by the settings that they follow."""
    try:
        return _choices().validate_json((folder / IN_FORCE).read_bytes())
    except (OSError, ValueError):
        return {}


def put_in_force(folder: Path, settings: str, choice: Choice) -> None:
    """Store a choice as the one in force for some settings."""
    choices = in_force(folder)
    if choices.get(settings) != choice:
        _write(folder / IN_FORCE, _choices().dump_json({**choices, settings: choice}))


def _write(file: Path, content: bytes) -> None:
    draft = file.with_suffix(f".draft-{os.getpid()}")
    with suppress(OSError):
        draft.write_bytes(content)
        os.replace(draft, file)


@cache
def _tables() -> TypeAdapter[Table]:
    return TypeAdapter(Table)


@cache
def _choices() -> TypeAdapter[dict[str, Any]]:
    return TypeAdapter(dict[str, Choice])
