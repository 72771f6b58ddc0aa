"""Talks to the disk: the highest term that this candidate took part in and its vote, fsynced.

Kept apart from the journal, which may be degraded while this small file can still be written.
One line: `<counter> <voted for, or -> <1 once the journal has held events, else 0>`.
"""

from __future__ import annotations

from pathlib import Path

from bus.wire.ids import NodeId
from master.consensus.types import PersistentState
from master.log.files import DISK_FILES, Files


def read_term(path: Path, files: Files = DISK_FILES) -> PersistentState:
    """Return what is kept: nothing without a file, `garbled` where it cannot be read."""
    try:
        words = files.read(path).decode().split()
        counter, voted_for, began = (*words, "-", "0")[:3] if len(words) < 2 else words
        named = None if voted_for == "-" else NodeId(voted_for)
        return PersistentState(int(counter), named, began == "1")
    except FileNotFoundError:
        return PersistentState()
    except (OSError, ValueError):
        return PersistentState(garbled=True)


def keep_term(path: Path, kept: PersistentState, files: Files = DISK_FILES) -> None:
    """Put the term on the disk; when this returns it survives a power cut. Raises OSError."""
    fresh = path.with_suffix(".new")
    file = files.create(fresh, 0o666)
    try:
        file.write(f"{kept.counter} {kept.voted_for or '-'} {int(kept.began)}\n".encode())
        file.sync()
    finally:
        file.close()
    files.rename(fresh, path)
    files.sync_folder(path.parent)
