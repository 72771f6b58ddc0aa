"""Talks to the C library and the garbage collector: returns freed memory to the system, and shares
memory through mapped files.

glibc retains freed memory that lies below a block in use. It also retains the free end of every
arena but the first, up to a threshold that grows to 64 MB. So a process with arrays of all sizes
stays as large as its peak. `give_back` returns such pages. Other C libraries return them by
themselves, or have no calls for it. `granted_data` returns the limit of memory that the system
grants this process.
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
"""The first: glibc's initial trim threshold. The other two: the values up to which glibc raises the
trim threshold and the mmap threshold."""


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
    """Return a new file of zeros, mapped into memory. Writing to it costs one memory write. Other
    processes can read it at any time, also after this process was killed. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.ftruncate(file, size)
        return mmap.mmap(file, size)
    finally:
        os.close(file)


def give_back(free_some: Callable[[], None] | None = None) -> None:
    """Return free pages to the system; takes milliseconds per hundred MB. `free_some` must allocate
    and free a block of more than 64 KB in the arena of the large blocks. Only a freed block makes
    glibc check the end of its arena. From then on glibc returns the free end of that arena at once,
    until `hold` is called."""
    if _LIBRARY is None:
        return
    if free_some is not None:
        # Setting one threshold ends the automatic growth of both, so the other one is set to its
        # maximum.
        _LIBRARY.mallopt(_MMAP_THRESHOLD, _MMAP_BYTES if _data_limit() is None else _LOW_BYTES)
        _LIBRARY.mallopt(_TRIM_THRESHOLD, _LOW_BYTES)
        free_some()
    _LIBRARY.malloc_trim(0)


def hold() -> None:
    """Let the arena retain its free end from now on, because work begins again and will need that
    memory."""
    if _LIBRARY is not None:
        _LIBRARY.mallopt(_TRIM_THRESHOLD, _HIGH_BYTES)


def keep() -> None:
    """Exclude all current objects from later garbage collections, because they live as long as the
    process."""
    gc.collect()
    gc.freeze()


def tidy() -> None:
    """Collect cyclic garbage and return free memory. For an idle process: it takes milliseconds."""
    gc.collect()
    give_back()


class DataGrant(NamedTuple):
    """The private memory (not of files) that a process uses, and its limit."""

    used_bytes: int
    limit_bytes: int


def granted_data() -> DataGrant | None:
    """Return how much of RLIMIT_DATA this process uses, and the limit. None if there is no limit,
    or if the system does not report it (only Linux does). After this call the C library maps each
    large block separately, so that a freed block no longer counts. Freed pieces inside an arena
    still count, because no large block fits into them."""
    limit_bytes = _data_limit()
    if limit_bytes is None:
        return None
    if _LIBRARY is not None:
        _LIBRARY.mallopt(_MMAP_THRESHOLD, _LOW_BYTES)
    data = data_bytes(Path("/proc/self/status").read_text())
    return None if data is None else DataGrant(data, limit_bytes)


def own_bytes() -> int | None:
    """Return the private memory of this process, in use or swapped out, without mapped files; on
    macOS its footprint, which includes Metal's buffers. None elsewhere."""
    if sys.platform == "linux":
        return anonymous_bytes(Path("/proc/self/status").read_text())
    return _footprint() if sys.platform == "darwin" else None


def anonymous_bytes(status: str) -> int | None:
    """Return the private memory in bytes, from the text of a process's `/proc/PID/status`; None if
    the text lacks it."""
    fields = dict(re.findall(r"^(RssAnon|VmSwap):\s+(\d+) kB$", status, re.MULTILINE))
    return sum(map(int, fields.values())) * 1024 if "RssAnon" in fields else None


_FOOTPRINT_AT, _USAGE_BYTES = 72, 96
"""Offset of the footprint in macOS's `rusage_info_v0`, and the size of that struct. The struct has
a UUID of 16 bytes, then 64-bit numbers; the footprint is the eighth."""


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
    """Return a process's private writable memory in bytes, which RLIMIT_DATA limits, from the text
    of its `/proc/PID/status`; None if the text lacks it."""
    match = re.search(r"^VmData:\s+(\d+) kB$", status, re.MULTILINE)
    return None if match is None else int(match.group(1)) * 1024


def resident_bytes(status: str) -> int | None:
    """Return a process's memory in use, mapped files included, in bytes, from the text of its
    `/proc/PID/status`; None if the text lacks it."""
    match = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return None if match is None else int(match.group(1)) * 1024
