"""Talks to the disk: the captures of this node (archives for diagnosis), each in a file until a
client fetches it.

The HTTP processes of a node share the files. The process that first creates the claim file of a
capture makes the capture, and any of the processes can send it. A claim file without a capture, and
a capture that no client fetched, are deleted after `KEPT_S`. If the disk is full, a process keeps
its own captures in memory.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from bus.process.clock import wall
from bus.wire.errors import ShoalError

KEPT_S = 600.0
CLAIM_S = 120.0
"""For this long, a claim file without a capture means that the capture is still being made."""
AT_A_TIME = 2
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MOST_NAME = 64


class CaptureRefused(ShoalError):
    """This node cannot make the capture now; the text says why."""


class KeptCaptures:
    """The captures in a folder that only this user can read. Every method blocks while it uses the
    disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._in_memory: dict[str, bytes] = {}

    def claimed(self, name: str) -> bool:
        """Create the claim file of a capture. Return whether this call created it; then the caller
        must make the capture. Raises CaptureRefused if the name is not valid or other captures are
        running."""
        if len(name) > _MOST_NAME or not _NAME.fullmatch(name):
            raise CaptureRefused(
                "the name of a capture has only lower-case letters, digits and hyphens"
            )
        if name in self._in_memory:
            return False
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tidy()
        if self._file(name, "claim").exists():
            return False
        if sum(self._is_open(claim) for claim in self._folder.glob("*.claim")) >= AT_A_TIME:
            raise CaptureRefused("this node is making other captures; try again when they end")
        try:
            os.close(os.open(self._file(name, "claim"), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def write(self, name: str, content: bytes) -> None:
        """Store a capture in one step."""
        part = self._file(name, "part")
        try:
            with open(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            part.replace(self._file(name, "capture"))
        except OSError:
            for older in list(self._in_memory)[: 1 - AT_A_TIME]:
                self._in_memory.pop(older, None)
            self._in_memory[name] = content

    def read(self, name: str) -> bytes | None:
        """Return a capture; None if it is not finished."""
        with contextlib.suppress(FileNotFoundError):
            return self._file(name, "capture").read_bytes()
        return self._in_memory.get(name)

    def forget(self, name: str) -> None:
        """Delete a capture. Its claim file remains for a while, so that a late call does not make
        the capture again."""
        if _NAME.fullmatch(name) and len(name) <= _MOST_NAME and self._folder.is_dir():
            self._in_memory.pop(name, None)
            with contextlib.suppress(OSError):
                self._file(name, "capture").unlink(missing_ok=True)
                self._file(name, "fetched").touch(mode=0o600)

    def _is_open(self, claim: Path) -> bool:
        done = any(claim.with_suffix(f".{end}").exists() for end in ("capture", "fetched"))
        return not done and _age_s(claim) < CLAIM_S

    def _tidy(self) -> None:
        for file in self._folder.iterdir():
            if _age_s(file) > KEPT_S:
                file.unlink(missing_ok=True)

    def _file(self, name: str, end: str) -> Path:
        return self._folder / f"{name}.{end}"


def _age_s(path: Path) -> float:
    """Return the seconds since a file was written; 0 if the file does not exist any more."""
    try:
        return abs(wall() - path.stat().st_mtime)
    except FileNotFoundError:
        return 0.0
