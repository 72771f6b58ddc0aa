"""Talks to the disk: the file system interface for data that must survive a crash.

A file is written in whole pieces, one after another. Written data survives the end of the
process; synced data survives a power cut, and so does a `rename` once its folder is synced. The
simulation has its own file system with the methods of `Files`, which loses what was not synced.
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
        """Write all of `data`. Raises OSError if not all of it could be written."""
        if os.write(self._descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, "short write")

    def cut(self, size: int) -> None:
        """Truncate the file to `size` bytes, where the next write continues. Raises OSError."""
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)

    def sync(self) -> None:
        """Return once the content survives a power cut. Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file without a sync."""
        os.close(self._descriptor)


class Files:
    """The operations of this machine's file system that the journal and the term file need."""

    def read(self, path: Path) -> bytes:
        """Return a file's content. Raises OSError; FileNotFoundError if there is no such file."""
        return path.read_bytes()

    def is_there(self, path: Path) -> bool:
        """Return whether a file of that name exists."""
        return path.exists()

    def open(self, path: Path) -> OpenFile:
        """Open an existing file, or create a file for its owner alone. Raises OSError."""
        return OpenFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def create(self, path: Path, mode: int) -> OpenFile:
        """Create an empty file, replacing any existing one. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return OpenFile(os.open(path, flags, mode))

    def rename(self, path: Path, to: Path) -> None:
        """Rename a file atomically within its folder. Raises OSError."""
        os.rename(path, to)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists. Raises OSError."""
        path.unlink(missing_ok=True)

    def link(self, path: Path, to: Path) -> None:
        """Create a second link to a file in the same folder. Raises OSError, FileExistsError if
        the name is taken."""
        os.link(path, to)

    def sync_folder(self, folder: Path) -> None:
        """Return once the names in a folder survive a power cut. Raises OSError."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its parents if they do not exist. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)

    def free_bytes(self, folder: Path) -> int:
        """Return the free bytes on the disk of a folder. Raises OSError."""
        return shutil.disk_usage(folder).free


DISK_FILES = Files()


def replace_file(path: Path, data: bytes, files: Files, mode: int = 0o666) -> None:
    """Write a file atomically, in place of any file of that name. When this returns, the file
    survives a power cut. Raises OSError."""
    fresh = path.with_suffix(".new")
    with closing(files.create(fresh, mode)) as file:
        file.write(data)
        file.sync()
    files.rename(fresh, path)
    files.sync_folder(path.parent)


def keep_aside(path: Path, files: Files) -> Path:
    """Give a damaged file a second name, under which it stays until a person removes it. Return
    that name."""
    copy = path.with_name(f"{path.name}.damaged")
    with suppress(OSError):
        files.link(path, copy)
    return copy
