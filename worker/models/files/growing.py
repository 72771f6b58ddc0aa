"""Talks to the disk: a folder in which the files of a model grow, and what is noted of its pieces.

`files/<path>` has its full size from the beginning, with holes until they are filled;
`have/<number>` has a byte for each piece of that file, 1 once it is written, and one more, 1 once
the whole file was found right and was synced. A piece is written before the byte that speaks of it,
so a process killed at any moment loses at most what was under way; what a power failure took is
found by the file's hash. The one home of these notes: a pull from a hub keeps them, and so does a
copy from other nodes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from bus.model_folders import LOCK
from bus.wire.messages.weights import PIECE_BYTES

FILES, HAVE = "files", "have"


class GrowingFiles:
    """The files of one model, by their sizes, in a folder; their numbers are their places."""

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        self.files = folder / FILES
        self._have = folder / HAVE
        self._sizes = dict(sizes)
        self._numbers = {path: number for number, path in enumerate(sizes)}

    def path(self, name: str) -> Path:
        """Return where a file grows."""
        return self.files / name

    def fits(self, name: str) -> bool:
        """Return whether the file and its notes are there, both as long as they have to be."""
        try:
            with contextlib.suppress(FileNotFoundError):
                sizes = (self.path(name).lstat().st_size, self._note(name).stat().st_size)
                return sizes == (self._sizes[name], self._pieces(name) + 1)
        except NotADirectoryError:
            pass
        return False

    def noted(self, name: str) -> bytes:
        """Return what `begin` would find noted of a file, and make nothing; empty where it would
        make both anew. Raises OSError."""
        has_notes = self.fits(name) and not self.path(name).is_symlink()
        return self._note(name).read_bytes() if has_notes else b""

    def begin(self, name: str) -> bytes:
        """Return what is noted of a file: a byte for each piece and one for the whole. Where that,
        or the file, is not as it has to be, both are made anew. Raises OSError."""
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
        """Write a piece, then note that it is there. Raises OSError."""
        _put(self.path(name), content, index * PIECE_BYTES)
        _put(self._note(name), b"\1", index)

    def found_right(self, name: str) -> None:
        """Note that the whole of a file, which is synced, is right. Raises OSError."""
        _put(self._note(name), b"\1", self._pieces(name))

    def changed(self, name: str) -> bool:
        """Return whether a file was written since something was noted of it. Raises OSError."""
        return self.path(name).stat().st_mtime_ns > self._note(name).stat().st_mtime_ns

    def spoil(self, name: str, pieces: Iterable[int]) -> None:
        """Note that these pieces are not there after all. Raises OSError."""
        for index in pieces:
            _put(self._note(name), b"\0", index)

    def forget(self, name: str) -> None:
        """Note that nothing of a file is there. Raises OSError."""
        self._note(name).write_bytes(bytes(self._pieces(name) + 1))

    def sync_folders(self) -> None:
        """Have the files' names outlive a power failure. Raises OSError."""
        for folder in {self.files, *(self.path(name).parent for name in self._sizes)}:
            sync_folder(folder)

    def _pieces(self, name: str) -> int:
        return -(-self._sizes[name] // PIECE_BYTES)

    def _note(self, name: str) -> Path:
        return self._have / str(self._numbers[name])


def grown_bytes(folder: Path) -> tuple[int, int]:
    """Return how many bytes of the files that grow in a folder are there, and how many there are to
    be. Raises OSError."""
    sizes = [path.stat().st_size for path in (folder / FILES).rglob("*") if path.is_file()]
    missing = sum(note.read_bytes()[:-1].count(0) for note in (folder / HAVE).iterdir())
    return max(0, sum(sizes) - missing * PIECE_BYTES), sum(sizes)


def try_lock(folder: Path) -> int | None:
    """Lock a folder for this process, until it ends or closes what is returned; None where another
    process has it, or it was removed meanwhile. Raises OSError."""
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
    """Return whether a process has locked a folder."""
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
    """Have the names in a folder outlive a power failure. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _put(path: Path, content: bytes, offset: int) -> None:
    """Write bytes into a file that is there, at their place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)
