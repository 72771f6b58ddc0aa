"""Talks to the disk: the seam between what has to survive a crash and the file system.

A file is written in whole pieces, one behind another. What was written survives the end of the
process; what was synced survives a power cut, a name that was given by `rename` once its folder
was synced. The simulation has a file system of its own with the methods of `Files`, which loses
what was not synced.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import closing, suppress
from pathlib import Path


class OpenFile:
    """A file that is open for writing at its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError where not all of it fits."""
        if os.write(self._descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, "short write")

    def cut(self, size: int) -> None:
        """Cut the file to its first `size` bytes and go on behind them. Raises OSError."""
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)

    def sync(self) -> None:
        """Return once the content survives a power cut. Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Let the file go, without a sync."""
        os.close(self._descriptor)


class Files:
    """The file system of this machine, as the journal and the term file need it."""

    def read(self, path: Path) -> bytes:
        """Return a file's content. Raises OSError, FileNotFoundError where there is none."""
        return path.read_bytes()

    def is_there(self, path: Path) -> bool:
        """Return whether there is a file of that name."""
        return path.exists()

    def open(self, path: Path) -> OpenFile:
        """Open a file as it is, or a new one for its owner alone. Raises OSError."""
        return OpenFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def create(self, path: Path, mode: int) -> OpenFile:
        """Open an empty file in the place of any that is there. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return OpenFile(os.open(path, flags, mode))

    def rename(self, path: Path, to: Path) -> None:
        """Give a file another's name in the same folder, at once. Raises OSError."""
        os.rename(path, to)

    def remove(self, path: Path) -> None:
        """Remove a file, where there is one. Raises OSError."""
        path.unlink(missing_ok=True)

    def link(self, path: Path, to: Path) -> None:
        """Give a file a second name in the same folder. Raises OSError, FileExistsError where there
        is a file of that name."""
        os.link(path, to)

    def sync_folder(self, folder: Path) -> None:
        """Return once the names in a folder survive a power cut. Raises OSError."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, where they are not there. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)

    def free_bytes(self, folder: Path) -> int:
        """Return how much can still be written to the disk of a folder. Raises OSError."""
        return shutil.disk_usage(folder).free


DISK_FILES = Files()


def replace_file(path: Path, data: bytes, files: Files, mode: int = 0o666) -> None:
    """Put a file on the disk in the place of any of its name; when this returns it survives a power
    cut. Raises OSError."""
    fresh = path.with_suffix(".new")
    with closing(files.create(fresh, mode)) as file:
        file.write(data)
        file.sync()
    files.rename(fresh, path)
    files.sync_folder(path.parent)


def keep_aside(path: Path, files: Files) -> Path:
    """Give a damaged file a second name, under which it stays until a person removes it, and
    return that."""
    kept = path.with_name(f"{path.name}.damaged")
    with suppress(OSError):
        files.link(path, kept)
    return kept
