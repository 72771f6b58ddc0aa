"""Talks to the disk: the highest term that this candidate took part in and its vote, fsynced.

Kept apart from the journal, which may be degraded while this small file can still be written.
One line: `<counter> <voted for, or -> <1 once the journal has held events, else 0>` and its
checksum (`bus.process.identity`); older versions wrote none, and the oldest only the counter.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from bus.process.identity import Damaged, sealed, unsealed
from bus.process.logs import Log
from bus.wire.ids import NodeId
from master.consensus.types import PersistentState
from master.log.files import DISK_FILES, Files, keep_aside, replace_file

_OLDER = re.compile(r"[0-9]+( [!-~]+ [01])?\n?")


def read_term(path: Path, files: Files = DISK_FILES) -> PersistentState:
    """Return what is kept: nothing without a file, `garbled` where it cannot be read."""
    try:
        words = unsealed(files.read(path), older=_OLDER).split()
        counter, voted_for, began = (*words, "-", "0") if len(words) == 1 else words
        named = None if voted_for == "-" else NodeId(voted_for)
        return PersistentState(int(counter), named, began == "1")
    except FileNotFoundError:
        return PersistentState()
    except (OSError, ValueError, Damaged):
        return PersistentState(garbled=True)


def keep_term(path: Path, kept: PersistentState, files: Files = DISK_FILES) -> None:
    """Put the term on the disk; when this returns it survives a power cut. Raises OSError."""
    line = f"{kept.counter} {kept.voted_for or '-'} {int(kept.began)}"
    replace_file(path, sealed(line), files)


class TermFile:
    """The term file of a running candidate. `kept` is what it holds; `sound` says that the last
    attempt to write it succeeded."""

    def __init__(self, path: Path, log: Log, files: Files = DISK_FILES) -> None:
        self.kept = read_term(path, files)
        self.sound = True
        self._path = path
        self._log = log
        self._files = files
        if self.kept.garbled:
            log.critical(
                "the term file is damaged: which terms and votes this node took part in is lost",
                file=str(path),
                kept=str(keep_aside(path, files)),
            )

    def keep_vote(self, counter: int, voted_for: NodeId | None) -> bool:
        """Put a term and our vote in it on the disk; return whether they are there."""
        return self._keep(replace(self.kept, counter=counter, voted_for=voted_for))

    def keep_began(self) -> bool:
        """Put on the disk that the journal has held events; return whether it is there. A damaged
        file is left as it is: written anew, it would no longer say that votes may be lost."""
        if self.kept.garbled:
            return False
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
