"""Talks to the C library and the collector: gives memory that was freed back to the system, and
shares some with those who read a file.

glibc keeps what is freed below a block still in use, and the free end of every arena but the first
as long as it is smaller than a threshold that grows to 64 MB; so a process whose arrays come and go
in all sizes stays as large as its worst moment. `give_back` returns such pages. Other C libraries
do so by themselves, or offer no such calls. `granted_data` tells what the system lets it take.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LOW_BYTES, _HIGH_BYTES, _MMAP_BYTES = 128 << 10, 64 << 20, 32 << 20
"""The C library's own first value of the threshold, and what it and its fellow grow to."""


def _library() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


_LIBRARY = _library()


def mapped_file(path: Path, size: int) -> mmap.mmap:
    """Return a new file of zeros as memory: to write costs a copy, and others read it at any time,
    also after this process was killed. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.ftruncate(file, size)
        return mmap.mmap(file, size)
    finally:
        os.close(file)


def give_back(free_some: Callable[[], None] | None = None) -> None:
    """Return free pages. Takes milliseconds per hundred MB. `free_some` has to allocate and free
    a block of more than 64 KB where the process's large blocks are: only a block that is freed
    lets glibc look at the end of its arena. It goes on doing so until `hold`."""
    if _LIBRARY is None:
        return
    if free_some is not None:
        # Whoever sets one threshold ends the growth of both: the other is put to its most.
        _LIBRARY.mallopt(_MMAP_THRESHOLD, _MMAP_BYTES if _data_limit() is None else _LOW_BYTES)
        _LIBRARY.mallopt(_TRIM_THRESHOLD, _LOW_BYTES)
        free_some()
    _LIBRARY.malloc_trim(0)


def hold() -> None:
    """Keep the free end of an arena, for it will be wanted: work begins again."""
    if _LIBRARY is not None:
        _LIBRARY.mallopt(_TRIM_THRESHOLD, _HIGH_BYTES)


def keep() -> None:
    """Spare later collections what there is now, for it stays as long as the process."""
    gc.collect()
    gc.freeze()


def tidy() -> None:
    """Let go of what only refers to itself, and give back what is free. For an idle process: it
    takes milliseconds."""
    gc.collect()
    give_back()


class DataGrant(NamedTuple):
    """Bytes of memory of its own (not of files) that a process takes, and may take."""

    used_bytes: int
    limit_bytes: int


def granted_data() -> DataGrant | None:
    """Return what this process takes of what RLIMIT_DATA grants it; None where nothing limits it,
    or where the system does not tell (it does on Linux alone). From then on large blocks are mapped
    one by one, so that what is freed of them counts no more: free pieces of an arena are not worth
    what they sum to, for a large block fits none of them."""
    limit_bytes = _data_limit()
    if limit_bytes is None:
        return None
    if _LIBRARY is not None:
        _LIBRARY.mallopt(_MMAP_THRESHOLD, _LOW_BYTES)
    data = data_bytes(Path("/proc/self/status").read_text())
    return None if data is None else DataGrant(data, limit_bytes)


def own_bytes() -> int | None:
    """Return the memory that this process has for itself, in use or swapped out, files that it maps
    left out; on macOS its footprint, which has Metal's buffers in it. None elsewhere."""
    if sys.platform == "linux":
        return anonymous_bytes(Path("/proc/self/status").read_text())
    return _footprint() if sys.platform == "darwin" else None


def anonymous_bytes(status: str) -> int | None:
    """Return what a process has for itself, of its `status` in /proc; None where that does not
    tell."""
    found = dict(re.findall(r"^(RssAnon|VmSwap):\s+(\d+) kB$", status, re.MULTILINE))
    return sum(map(int, found.values())) * 1024 if "RssAnon" in found else None


_FOOTPRINT_AT, _USAGE_BYTES = 72, 96
"""In macOS's `rusage_info_v0`: a UUID of 16 bytes, then numbers of 64 bits, of which the footprint
is the eighth."""


def _footprint() -> int | None:
    usage = ctypes.create_string_buffer(_USAGE_BYTES)
    try:
        failed = ctypes.CDLL(None).proc_pid_rusage(os.getpid(), 0, usage)
    except (OSError, AttributeError):
        return None
    return None if failed else int.from_bytes(usage[_FOOTPRINT_AT : _FOOTPRINT_AT + 8], "little")


def _data_limit() -> int | None:
    if sys.platform != "linux":
        return None
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if limit_bytes == resource.RLIM_INFINITY else limit_bytes


def data_bytes(status: str) -> int | None:
    """Return a process's private writable memory, which RLIMIT_DATA limits, of its `status` in
    /proc; None where that does not tell."""
    found = re.search(r"^VmData:\s+(\d+) kB$", status, re.MULTILINE)
    return None if found is None else int(found.group(1)) * 1024
