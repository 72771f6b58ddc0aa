"""Talks to the disk: the highest term counter that this candidate has seen, fsynced.

Kept apart from the journal, which may be degraded while this small file can still be written.
"""

from __future__ import annotations

import os
from pathlib import Path


def read_counter(path: Path) -> int:
    """The counter kept, 0 when there is none or it cannot be read."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def keep_counter(path: Path, counter: int) -> None:
    """Put the counter on the disk; when this returns it survives a power cut."""
    fresh = path.with_suffix(".new")
    with open(fresh, "w") as file:
        file.write(f"{counter}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
