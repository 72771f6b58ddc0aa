"""Talks to the disk: the files of a model and their hashes, each computed once.

Hashes are stored in the state folder by (path, size, change time, inode); a file with any change is
hashed again. Links are followed only to files inside the model's own folder, or, for a snapshot of
the Hugging Face cache, to its repository's blobs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bus.models.lora import FOLDER
from bus.wire.codec import pack, unpack
from bus.wire.errors import BadMessage
from bus.wire.messages.weights import PIECE_BYTES, FileEntry
from worker.models.manifest import belongs, ggufs_of

MAX_ENTRY_BYTES = 256 << 20

Progress = Callable[[int], None]
Stopped = Callable[[], bool]


class Interrupted(Exception):
    """The work stopped early, because its thread must end."""


@dataclass(frozen=True, slots=True)
class Held:
    """One file of a model on this disk. `real` is the path of the file itself, which `path` may
    reach through links."""

    path: str
    real: Path
    size_bytes: int
    changed_ns: int
    inode: int

    def read(self, offset: int, length: int) -> bytes:
        """Return at most `length` bytes from `offset` on. Raises OSError; FileChanged if the file
        is no longer the one listed."""
        with self.opened() as file:
            return os.pread(file, length, offset)

    @contextlib.contextmanager
    def opened(self) -> Generator[int]:
        """Yield an open descriptor of exactly the file that was listed. Raises OSError,
        FileChanged."""
        with opened(self.real, os.O_RDONLY | os.O_NOFOLLOW) as file:
            if _mark(os.fstat(file)) != (self.size_bytes, self.changed_ns, self.inode):
                raise FileChanged(f"{self.path} has changed on the disk")
            yield file

    @property
    def mark(self) -> list[str | int]:
        """Return the key under which the file's hashes are stored."""
        return [str(self.real), self.size_bytes, self.changed_ns, self.inode]


class FileChanged(Exception):
    """A file has changed since its model was scanned."""


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Generator[int]:
    """Yield an open descriptor of a file or folder, and close it afterwards. Raises OSError."""
    file = os.open(path, flags)
    try:
        yield file
    finally:
        os.close(file)


def held_files(folder: Path) -> tuple[Held, ...]:
    """Return the files of the model in `folder`, by path. Raises OSError."""
    roots = _roots(folder)
    files: list[Held] = []
    for path in _paths(folder):
        real = (folder / path).resolve()
        if not any(real.is_relative_to(root) for root in roots):
            continue
        seen = real.stat()
        if stat.S_ISREG(seen.st_mode):
            files.append(Held(path, real, *_mark(seen)))
    return tuple(sorted(files, key=lambda held: held.path))


class Hashes:
    """The hashes of this node's files, stored in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def of(self, held: Held, progress: Progress, stopped: Stopped) -> FileEntry:
        """Return a file's entry in the manifest, with its hashes, which are computed if they are
        not stored. Raises OSError, FileChanged, Interrupted."""
        stored = self._stored_entry(held)
        if stored is not None:
            progress(held.size_bytes)
            return stored
        with held.opened() as file:
            whole, pieces = hash_pieces(file, held.size_bytes, progress, stopped)
        with held.opened():
            pass  # it has not changed while it was read
        self._keep(held, whole, pieces)
        return _entry(held, whole, pieces)

    def sweep(self) -> None:
        """Drop the stored hashes of files that no longer exist."""
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                entry = _unpacked(path)
                if entry is None or not os.path.exists(entry[0]):
                    path.unlink()

    def _stored_entry(self, held: Held) -> FileEntry | None:
        try:
            entry = _unpacked(self._file(held))
        except OSError:
            return None
        if entry is None or entry[:4] != held.mark:
            return None
        return _entry(held, entry[4], entry[5])

    def _keep(self, held: Held, whole: str, pieces: bytes) -> None:
        path = self._file(held)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(pack([*held.mark, whole, pieces]))
        fresh.replace(path)

    def _file(self, held: Held) -> Path:
        return self._folder / hashlib.sha256(str(held.real).encode()).hexdigest()[:32]


def hash_pieces(
    file: int, size_bytes: int, progress: Progress, stopped: Stopped
) -> tuple[str, bytes]:
    """Return (SHA-256 of the whole in hexadecimal, SHA-256 of each piece) of an open file. Raises
    OSError, FileChanged if it is shorter, Interrupted."""
    whole = hashlib.sha256()
    pieces = bytearray()
    for content in _contents(file, size_bytes, stopped):
        whole.update(content)
        pieces += hashlib.sha256(content).digest()
        progress(len(content))
    return whole.hexdigest(), bytes(pieces)


def hash_whole(file: int, size_bytes: int, stopped: Stopped) -> str:
    """Return the SHA-256 of an open file's content, in hexadecimal. Raises the same errors as
    `hash_pieces`."""
    whole = hashlib.sha256()
    for content in _contents(file, size_bytes, stopped):
        whole.update(content)
    return whole.hexdigest()


def _contents(file: int, size_bytes: int, stopped: Stopped) -> Iterator[bytes]:
    for offset in range(0, size_bytes, PIECE_BYTES):
        if stopped():
            raise Interrupted
        length = min(PIECE_BYTES, size_bytes - offset)
        content = os.pread(file, length, offset)
        if len(content) != length:
            raise FileChanged("the file is shorter than it was")
        yield content


def _entry(held: Held, whole: str, pieces: bytes) -> FileEntry:
    return FileEntry(path=held.path, size_bytes=held.size_bytes, sha256=whole, piece_hashes=pieces)


def _mark(seen: os.stat_result) -> tuple[int, int, int]:
    return seen.st_size, seen.st_mtime_ns, seen.st_ino


def _roots(folder: Path) -> list[Path]:
    real = folder.resolve()
    snapshot = real.parent.name == "snapshots"
    return [real, real.parent.parent / "blobs"] if snapshot else [real]


def _paths(folder: Path) -> Iterator[str]:
    entries = tuple(os.scandir(folder))
    ggufs = ggufs_of([entry.name for entry in entries])
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            for inner in os.scandir(entry.path):
                path = f"{entry.name}/{inner.name}"
                if entry.name == FOLDER and inner.is_dir(follow_symlinks=False):
                    names = (f"{path}/{file.name}" for file in os.scandir(inner.path))
                    yield from filter(belongs, names)
                elif belongs(path):
                    yield path
        elif belongs(entry.name) or entry.name in ggufs:
            yield entry.name


def _unpacked(path: Path) -> list[Any] | None:
    try:
        entry = unpack(path.read_bytes(), limit_bytes=MAX_ENTRY_BYTES)
    except BadMessage:
        return None
    match entry:
        case [str(), int(), int(), int(), str(), bytes()]:
            return list(entry)
        case _:
            return None
