"""Talks to BLAS and to a file shared by this user's runners: sets how many threads a busy runner
uses.

All busy runners of this user on this machine, of all nodes, divide the cores. BLAS threads spin
while they wait, so there must not be more of them than cores. Each runner locks one line of the
file as long as it lives, and writes its process id there while it is busy. A step reads only the
clock; the file is read at most ten times a second.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

LINES = 512
LOOK_S = 0.1
_LINE = struct.Struct("=q")

SetThreads = Callable[[int], object]


def share(most: int, cores: int, busy: int) -> int:
    """Return how many threads each of `busy` busy runners may use: at least 1, at most `most`."""
    return max(1, min(most, cores // max(1, busy)))


class Threads(Protocol):
    """Controls how many threads the BLAS library of an engine uses."""

    def work(self) -> None:
        """Record that a step begins."""
        ...

    def rest(self) -> None:
        """Record that there is no work."""
        ...


class OwnThreads:
    """Leaves the number of BLAS threads as it is: this runner does not share the cores with other
    runners."""

    def work(self) -> None:
        """Change nothing."""

    def rest(self) -> None:
        """Change nothing."""


class SharedThreads:
    """Sets the number of BLAS threads of a runner that shares the machine's cores with other
    runners. `most` is the initial and greatest number. `file` is created if it does not exist. If
    other runners have locked all its lines, they do not count this runner."""

    def __init__(self, file: Path, *, most: int, cores: int, set_threads: SetThreads) -> None:
        self._most, self._cores, self._set_threads = most, cores, set_threads
        self._threads = most
        self._busy = False
        self._looked_at = 0.0
        # The file stays open, because closing it would release the lock of the line.
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = LINES * _LINE.size
        if os.fstat(self._file).st_size < size:
            os.ftruncate(self._file, size)
        self._map = mmap.mmap(self._file, size)
        self._line = next(filter(self._takes, range(0, size, _LINE.size)), None)

    def work(self) -> None:
        """Record that a step begins, and use the threads that other busy runners leave free."""
        now = time.monotonic()
        if self._busy and now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if not self._busy:
            self._busy = True
            self._write(os.getpid())
        threads = share(self._most, self._cores, self._count())
        if threads != self._threads:
            self._threads = threads
            self._set_threads(threads)

    def rest(self) -> None:
        """Mark this runner as idle, so that other runners use its cores."""
        self._busy = False
        self._write(0)

    def _takes(self, line: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LINE.size, line)
        except OSError:
            return False
        _LINE.pack_into(self._map, line, 0)
        return True

    def _write(self, pid: int) -> None:
        if self._line is not None:
            _LINE.pack_into(self._map, self._line, pid)

    def _count(self) -> int:
        """Return the number of busy runners, including this one. Ids of ended processes are not
        counted, because a killed runner leaves its id in the file."""
        own = os.getpid()
        others = {pid for (pid,) in _LINE.iter_unpack(self._map[:]) if pid not in (0, own)}
        return 1 + sum(os.path.exists(f"/proc/{pid}") for pid in others)


def shared_threads(file: Path, cores: int) -> Threads:
    """Return a control for the threads of the BLAS library that is preloaded into this process. It
    changes nothing if there is no such library, if the library has one thread, or if `file` cannot
    be opened."""
    preloaded = ctypes.CDLL(None)
    for get, put in _CALLS:
        if hasattr(preloaded, get) and hasattr(preloaded, put):
            most, set_threads = getattr(preloaded, get)(), getattr(preloaded, put)
            with suppress(OSError):
                if most > 1:
                    return SharedThreads(file, most=most, cores=cores, set_threads=set_threads)
    return OwnThreads()


_CALLS = (
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
)
