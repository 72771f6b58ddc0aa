"""Talks to the disk: a folder in which a model's files grow, with a record of their pieces.

`files/<path>` has its full size from the beginning, with holes. `have/<number>` has a byte per
piece of that file, 1 when it is written, and a last byte, 1 when the whole file was verified and
synced. A piece is written before its byte, so a killed process loses at most the piece in progress;
the file's hash detects losses by a power failure. Pulls from a hub and copies from other nodes both
use this record.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from bus.models.model_folders import LOCK
from bus.wire.messages.weights import PIECE_BYTES

FILES, HAVE = "files", "have"


class GrowingFiles:
    """The files of one model that is being fetched, in a folder. `sizes` maps their paths to their
    sizes in bytes. The number of a file is its position in `sizes`."""

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        self.files = folder / FILES
        self._have = folder / HAVE
        self._sizes = dict(sizes)
        self._numbers = {path: number for number, path in enumerate(sizes)}

    def path(self, name: str) -> Path:
        return self.files / name

    def fits(self, name: str) -> bool:
        """Return whether the file and its record of pieces exist with the right sizes."""
        try:
            with contextlib.suppress(FileNotFoundError):
                sizes = (self.path(name).lstat().st_size, self._note(name).stat().st_size)
                return sizes == (self._sizes[name], self._pieces(name) + 1)
        except NotADirectoryError:
            pass
        return False

    def noted(self, name: str) -> bytes:
        """Return the record of a file's pieces without creating anything; empty if the file or its
        record is missing or has a wrong size. Raises OSError."""
        has_notes = self.fits(name) and not self.path(name).is_symlink()
        return self._note(name).read_bytes() if has_notes else b""

    def begin(self, name: str) -> bytes:
        """Return a file's record: a byte per piece and one for the whole. Creates file and record
        if either is missing or has a wrong size. Raises OSError."""
        if noted := self.noted(name):
            return noted
        path, note = self.path(name), self._note(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._have.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        with open(path, "xb") as made:
            made.truncate(self._sizes[name])
        self.forget(name)
        return note.read_bytes()

    def write(self, name: str, index: int, content: bytes) -> None:
        """Write a piece of a file, then record that it is present. Raises OSError."""
        _put(self.path(name), content, index * PIECE_BYTES)
        _put(self._note(name), b"\1", index)

    def found_right(self, name: str) -> None:
        """Record that a file is complete, correct and synced to the disk. Raises OSError."""
        _put(self._note(name), b"\1", self._pieces(name))

    def changed(self, name: str) -> bool:
        """Return whether a file was written after its record was written last. Raises OSError."""
        return self.path(name).stat().st_mtime_ns > self._note(name).stat().st_mtime_ns

    def spoil(self, name: str, pieces: Iterable[int]) -> None:
        """Record that these pieces of a file are missing. Raises OSError."""
        for index in pieces:
            _put(self._note(name), b"\0", index)

    def forget(self, name: str) -> None:
        """Record that all pieces of a file are missing. Raises OSError."""
        self._note(name).write_bytes(bytes(self._pieces(name) + 1))

    def sync_folders(self) -> None:
        """Sync the folders of the files, so that the files' names survive a power failure. Raises
        OSError."""
        for folder in {self.files, *(self.path(name).parent for name in self._sizes)}:
            sync_folder(folder)

    def _pieces(self, name: str) -> int:
        return -(-self._sizes[name] // PIECE_BYTES)

    def _note(self, name: str) -> Path:
        return self._have / str(self._numbers[name])


def grown_bytes(folder: Path) -> tuple[int, int]:
    """Return the present bytes and the total bytes of the growing files in a folder. Raises
    OSError."""
    files = (path for path in (folder / FILES).rglob("*") if not path.name.startswith("."))
    sizes = [path.stat().st_size for path in files if path.is_file()]
    missing = sum(note.read_bytes()[:-1].count(0) for note in (folder / HAVE).iterdir())
    return max(0, sum(sizes) - missing * PIECE_BYTES), sum(sizes)


def try_lock(folder: Path) -> int | None:
    """Lock a folder for this process, until it ends or closes the returned descriptor; None if
    another process holds it, or it was deleted meanwhile. Raises OSError."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(folder / LOCK).st_ino == os.fstat(lock).st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None


def is_locked(folder: Path) -> bool:
    """Return whether another process holds the lock of a folder."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names in it survive a power failure. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _put(path: Path, content: bytes, offset: int) -> None:
    """Write bytes at an offset of an existing file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)
