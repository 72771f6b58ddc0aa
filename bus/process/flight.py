"""Talks to the disk: the last entries of a process's flight recorder, in a file that outlives the
process.

The file is mapped: a write costs one memory write, and the entries can be read after the process
was killed. The file is a ring buffer of slots of equal size. Each slot has one entry with its
number. An incomplete entry is skipped when the file is read.
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
"""Maximum characters of a text in an entry that would otherwise exceed its slot."""
_HEAD = struct.Struct("<QI")
_ROOM = PLACE_BYTES - _HEAD.size


class FlightFile:
    """The ring buffer of this process, `<folder>/<process>.<pid>.flight`, with `places` entries."""

    def __init__(self, folder: Path, process: str, places: int) -> None:
        self._places, self._count = places, 0
        path = _path(folder, process, os.getpid())
        self._shared = mapped_file(path, places * PLACE_BYTES)

    def add(self, entry: Mapping[str, Any], renews: bool = False) -> None:
        """Write an entry over the oldest one. If it `renews`, write it over the latest one
        instead."""
        if renews and self._count:
            self._count -= 1
        packed = pack(dict(entry))
        if len(packed) > _ROOM:
            texts = {k: v[:MOST_TEXT] if isinstance(v, str) else v for k, v in entry.items()}
            packed = pack(texts)[:_ROOM]  # truncated: readers leave it out
        at = self._count % self._places * PLACE_BYTES
        self._count += 1
        _HEAD.pack_into(self._shared, at, 0, 0)
        self._shared[at + _HEAD.size : at + _HEAD.size + len(packed)] = packed
        _HEAD.pack_into(self._shared, at, self._count, len(packed))

    def close(self) -> None:
        """Stop writing; the file stays for `take_flight`."""
        self._shared.close()


def take_flight(folder: Path, process: str, pid: int) -> tuple[dict[str, Any], ...]:
    """Return the last entries of an ended process, oldest first, and delete its file; none if it
    left no file."""
    entries = read_flight(folder, process, pid)
    with contextlib.suppress(OSError):
        _path(folder, process, pid).unlink()
    return entries


def read_flight(folder: Path, process: str, pid: int) -> tuple[dict[str, Any], ...]:
    """Return the last entries of a process, oldest first, also while it writes or is halted; none
    if it has no file."""
    try:
        data = _path(folder, process, pid).read_bytes()
    except OSError:
        return ()
    entries: dict[int, dict[str, Any]] = {}
    for at in range(0, len(data) - PLACE_BYTES + 1, PLACE_BYTES):
        number, length = _HEAD.unpack_from(data, at)
        if number:
            with contextlib.suppress(BadMessage):
                entry = unpack(data[at + _HEAD.size : at + _HEAD.size + length])
                entries[number] = cast(dict[str, Any], entry)
    return tuple(entries[number] for number in sorted(entries))


def _path(folder: Path, process: str, pid: int) -> Path:
    return folder / f"{process.replace(':', '-')}.{pid}.flight"
