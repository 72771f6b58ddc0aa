"""Talks to the disk: the highest term that this candidate took part in and its vote, fsynced.

Kept apart from the journal, which may be degraded while this small file can still be written.
One line: `<counter> <voted for, or -> <1 once the journal has held events, else 0>`.
"""

from __future__ import annotations

import os
from pathlib import Path

from bus.wire.ids import NodeId
from master.consensus.types import PersistentState


def read_term(path: Path) -> PersistentState:
    """What is kept; nothing was where there is no file."""
    try:
        words = path.read_text().split()
        counter, voted_for, began = (*words, "-", "0")[:3] if len(words) < 2 else words
        named = None if voted_for == "-" else NodeId(voted_for)
        return PersistentState(int(counter), named, began == "1")
    except FileNotFoundError:
        return PersistentState()
    except (OSError, ValueError):
        return PersistentState(garbled=True)


def keep_term(path: Path, kept: PersistentState) -> None:
    """Put it on the disk; when this returns it survives a power cut. Raises OSError."""
    fresh = path.with_suffix(".new")
    with open(fresh, "w") as file:
        file.write(f"{kept.counter} {kept.voted_for or '-'} {int(kept.began)}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
