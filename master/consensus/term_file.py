"""Talks to the disk: the highest term that this candidate took part in and its vote, fsynced.

It is separate from the journal, because this small file can often still be written when the journal
cannot. One line: `<counter> <voted for, or -> <1 once the journal has held events, else 0>` and its
checksum (`bus.process.identity`); older versions wrote no checksum, and the oldest only the
counter.
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
    """Return the file's content: the initial state without a file, `garbled` if it cannot be
    read."""
    try:
        words = unsealed(files.read(path), older=_OLDER).split()
        counter, voted_for, began = (*words, "-", "0") if len(words) == 1 else words
        named = None if voted_for == "-" else NodeId(voted_for)
        return PersistentState(int(counter), named, began == "1")
    except FileNotFoundError:
        return PersistentState()
    except (OSError, ValueError, Damaged):
        return PersistentState(garbled=True)


def keep_term(path: Path, state: PersistentState, files: Files = DISK_FILES) -> None:
    """Write the term; on return it survives a power cut. Raises OSError."""
    line = f"{state.counter} {state.voted_for or '-'} {int(state.began)}"
    replace_file(path, sealed(line), files)


class TermFile:
    """The term file of a running candidate. `state` is the file's content. `sound`: the last
    attempt to write the file succeeded."""

    def __init__(self, path: Path, log: Log, files: Files = DISK_FILES) -> None:
        self.state = read_term(path, files)
        self.sound = True
        self._path = path
        self._log = log
        self._files = files
        if self.state.garbled:
            log.critical(
                "the term file is damaged; this node no longer knows its term and its vote",
                file=str(path),
                kept=str(keep_aside(path, files)),
            )

    def keep_vote(self, counter: int, voted_for: NodeId | None) -> bool:
        """Write a term and our vote in it to disk; return whether that succeeded."""
        return self._keep(replace(self.state, counter=counter, voted_for=voted_for))

    def keep_began(self) -> bool:
        """Write to disk that the journal has held events. Return whether that succeeded. A damaged
        term file is not overwritten, because a new one would hide that votes may be lost."""
        if self.state.garbled:
            return False
        return self.state.began or self._keep(replace(self.state, began=True))

    def _keep(self, state: PersistentState) -> bool:
        try:
            keep_term(self._path, state, self._files)
        except OSError as error:
            if self.sound:
                self._log.critical(
                    "cannot save the term; free disk space",
                    file=str(self._path),
                    error=str(error),
                )
            self.sound = False
            return False
        self.state, self.sound = state, True
        return True
