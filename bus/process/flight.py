"""Talks to the disk: the last entries of a process's flight recorder, in a file that outlives it.

The file is mapped: to write costs a copy in memory, and what was written is there to be read
after the process was killed. Entries lie in a ring of places of one size, each with its number; one
that was cut off in the middle of being written is left out.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from bus.process.memory import mapped_file
from bus.wire.codec import pack, unpack
from bus.wire.errors import BadMessage

PLACE_BYTES = 1024
MOST_TEXT = 200
"""Characters of a text, in an entry that would not fit its place."""
_HEAD = struct.Struct("<QI")
_ROOM = PLACE_BYTES - _HEAD.size


class FlightFile:
    """The ring of this process, `<folder>/<process>.<pid>.flight`, with `places` entries."""

    def __init__(self, folder: Path, process: str, places: int) -> None:
        self._places, self._count = places, 0
        path = _path(folder, process, os.getpid())
        self._shared = mapped_file(path, places * PLACE_BYTES)

    def add(self, entry: Mapping[str, Any], renews: bool = False) -> None:
        """Write an entry over the oldest one; one that `renews` over the latest."""
        if renews and self._count:
            self._count -= 1
        packed = pack(dict(entry))
        if len(packed) > _ROOM:
            texts = {k: v[:MOST_TEXT] if isinstance(v, str) else v for k, v in entry.items()}
            packed = pack(texts)[:_ROOM]  # cut off, it is left out
        at = self._count % self._places * PLACE_BYTES
        self._count += 1
        _HEAD.pack_into(self._shared, at, 0, 0)
        self._shared[at + _HEAD.size : at + _HEAD.size + len(packed)] = packed
        _HEAD.pack_into(self._shared, at, self._count, len(packed))

    def close(self) -> None:
        """Write no more; the file stays for `take_flight`."""
        self._shared.close()


def take_flight(folder: Path, process: str, pid: int) -> tuple[dict[str, Any], ...]:
    """Return the last entries of a process that is gone, the oldest first, and remove its file;
    none where it left none."""
    found = read_flight(folder, process, pid)
    with contextlib.suppress(OSError):
        _path(folder, process, pid).unlink()
    return found


def read_flight(folder: Path, process: str, pid: int) -> tuple[dict[str, Any], ...]:
    """Return the last entries of a process, the oldest first, which may be writing more or be
    halted; none where it has no file."""
    try:
        data = _path(folder, process, pid).read_bytes()
    except OSError:
        return ()
    found: dict[int, dict[str, Any]] = {}
    for at in range(0, len(data) - PLACE_BYTES + 1, PLACE_BYTES):
        number, length = _HEAD.unpack_from(data, at)
        if number:
            with contextlib.suppress(BadMessage):
                entry = unpack(data[at + _HEAD.size : at + _HEAD.size + length])
                found[number] = cast(dict[str, Any], entry)
    return tuple(found[number] for number in sorted(found))


def _path(folder: Path, process: str, pid: int) -> Path:
    return folder / f"{process.replace(':', '-')}.{pid}.flight"
