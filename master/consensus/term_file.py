"""Talks to the disk: the highest term that this candidate took part in and its vote, fsynced.

Kept apart from the journal, which may be degraded while this small file can still be written.
One line: `<counter> <voted for, or -> <1 once the journal has held events, else 0>`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from bus.process.logs import Log
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
    with closing(files.create(fresh, 0o666)) as file:
        file.write(f"{kept.counter} {kept.voted_for or '-'} {int(kept.began)}\n".encode())
        file.sync()
    files.rename(fresh, path)
    files.sync_folder(path.parent)


class TermFile:
    """The term file of a running candidate. `kept` is what it holds; `sound` says that the last
    attempt to write it succeeded."""

    def __init__(self, path: Path, log: Log, files: Files = DISK_FILES) -> None:
        self.kept = read_term(path, files)
        self.sound = True
        self._path = path
        self._log = log
        self._files = files

    def keep_vote(self, counter: int, voted_for: NodeId | None) -> bool:
        """Put a term and our vote in it on the disk; return whether they are there."""
        return self._keep(replace(self.kept, counter=counter, voted_for=voted_for))

    def keep_began(self) -> bool:
        """Put on the disk that the journal has held events; return whether it is there."""
        return self.kept.began or self._keep(replace(self.kept, began=True))

    def _keep(self, kept: PersistentState) -> bool:
        try:
            keep_term(self._path, kept, self._files)
        except OSError as error:
            if self.sound:
                self._log.critical(
                    "could not keep the term: free some disk space",
                    file=str(self._path),
                    error=str(error),
                )
            self.sound = False
            return False
        self.kept, self.sound = kept, True
        return True
