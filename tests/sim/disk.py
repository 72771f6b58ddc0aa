"""A machine's disk: a file system in memory that loses at a power cut what was not synced.

Of each file a part of what was written behind its last sync may be left; of each folder either
the names as they are or those of its last sync. A new file that was synced keeps the name that it
was made with, as on the file systems that we run on.
"""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random


class _File:
    def __init__(self, disk: Disk, made_at: Path) -> None:
        self.disk = disk
        self.made_at = made_at
        self.data = bytearray()
        self.synced_bytes = 0

    def write(self, data: bytes) -> None:
        if self.disk.full and self.made_at not in self.disk.reserved:
            raise OSError(errno.ENOSPC, "the simulated disk is full")
        self.data += data

    def cut(self, size: int) -> None:
        del self.data[size:]
        self.synced_bytes = min(self.synced_bytes, size)

    def sync(self) -> None:
        self.synced_bytes = len(self.data)
        if self.disk.names.get(self.made_at) is self:
            self.disk.synced_names[self.made_at] = self

    def close(self) -> None:
        return None


class Disk:
    """`full`: nothing more can be written, but to the files that are `reserved`. `names` are the
    files, `synced_names` those that a power cut leaves for certain."""

    def __init__(self, *reserved: Path) -> None:
        self.full = False
        self.reserved = frozenset(reserved)
        self.names: dict[Path, _File] = {}
        self.synced_names: dict[Path, _File] = {}

    def read(self, path: Path) -> bytes:
        if path not in self.names:
            raise FileNotFoundError(path)
        return bytes(self.names[path].data)

    def is_there(self, path: Path) -> bool:
        return path in self.names

    def open(self, path: Path) -> _File:
        return self.names.setdefault(path, _File(self, path))

    def create(self, path: Path, mode: int) -> _File:
        self.names[path] = _File(self, path)
        return self.names[path]

    def rename(self, path: Path, to: Path) -> None:
        self.names[to] = self.names.pop(path)

    def remove(self, path: Path) -> None:
        self.names.pop(path, None)

    def link(self, path: Path, to: Path) -> None:
        if to in self.names:
            raise FileExistsError(to)
        self.names[to] = self.names[path]

    def rot(self, path: Path, chance: Random) -> None:
        """Flip one bit of what is on the disk under this name."""
        file = self.names.get(path)
        if file is not None and file.data:
            file.data[chance.randrange(len(file.data))] ^= 1 << chance.randrange(8)

    def sync_folder(self, folder: Path) -> None:
        for path in [path for path in self.synced_names if path.parent == folder]:
            del self.synced_names[path]
        for path, file in self.names.items():
            if path.parent == folder:
                self.synced_names[path] = file

    def make_folder(self, folder: Path) -> None:
        return None

    def free_bytes(self, folder: Path) -> int:
        return 0 if self.full else 1 << 40

    def unsynced_bytes(self) -> int:
        """Return how much of what the files hold a power cut may take; of those that were damaged
        and kept aside nothing counts."""
        return sum(
            len(file.data) - file.synced_bytes
            for path, file in self.names.items()
            if path.suffix != ".damaged"
        )

    def lose_power(self, chance: Random) -> None:
        """Lose what was not synced, or a part of it."""
        for folder in sorted({path.parent for path in (*self.names, *self.synced_names)}):
            if chance.random() < 0.5:
                continue
            for path in [path for path in self.names if path.parent == folder]:
                del self.names[path]
            for path, file in self.synced_names.items():
                if path.parent == folder:
                    self.names[path] = file
        for file in self.names.values():
            file.cut(chance.randint(file.synced_bytes, len(file.data)))
            file.synced_bytes = len(file.data)
        self.synced_names = dict(self.names)
