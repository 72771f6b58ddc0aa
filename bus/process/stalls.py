"""Talks to the operating system: how long a loop kept everything else waiting, for all to read.

A stall is the wall time of one turn of a loop, less the time in which its thread was ready and had
no core: waiting for the interpreter's lock counts, waiting for a core does not (Linux tells the
two apart; elsewhere both count). Turns of 10 ms and more are counted in a small mapped file per
process, which costs nothing to write and can be read while the loop stands still.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

from bus.process.clock import now
from bus.process.memory import mapped_file

BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LEAST_S = 0.01
LOOK_AGAIN_S = 0.05
"""How old what is known of waiting for a core may be when a turn begins."""
_ENDING = ".stalls"
_FORM = struct.Struct(f"<64s{len(BOUNDS_S) + 1}Qdd")


@dataclass(frozen=True, slots=True)
class StallCounts:
    """The stalls of one process: how many up to each of `BOUNDS_S` (the last: longer), their sum
    and the longest, in seconds."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0
    longest_s: float = 0.0

    def with_one(self, seconds: float) -> StallCounts:
        """Return the counts with another stall of so many seconds."""
        place = sum(seconds > bound for bound in BOUNDS_S)
        counts = tuple(count + (index == place) for index, count in enumerate(self.counts))
        return StallCounts(counts, self.sum_s + seconds, max(self.longest_s, seconds))


class StallMeter:
    """Times the turns of one loop, all in one thread: `woke`, then `done`, once a turn."""

    def __init__(self, folder: Path, process: str) -> None:
        """Count from nothing in `<folder>/<process>.stalls`, which lies there until `close`."""
        self._path = folder / f"{process.replace(':', '-')}{_ENDING}"
        self._process = process.encode()
        self._shared = mapped_file(self._path, _FORM.size)
        self._keep(StallCounts())
        self._wait = _CoreWait()
        self._woke_at = now()
        self._waited_s = 0.0
        self._looked_at = float("-inf")

    def woke(self) -> None:
        """Begin a turn."""
        self._woke_at = now()
        if self._woke_at - self._looked_at > LOOK_AGAIN_S:
            self._look()

    def done(self) -> None:
        """End the turn, and count it where it was long."""
        turn_s = now() - self._woke_at
        if turn_s < LEAST_S:
            return
        before_s = self._waited_s
        self._look()
        self.add(turn_s - (self._waited_s - before_s))

    def late(self, seconds: float) -> None:
        """Count a turn known by how late a timer fired that was due `seconds` ago.

        To be asked at every firing of one timer: what its thread has waited for a core since the
        firing before does not count.
        """
        before_s = self._waited_s
        self._look()
        self.add(seconds - (self._waited_s - before_s))

    def add(self, seconds: float) -> None:
        """Count a stall, unless it is short, or the file is gone."""
        if seconds >= LEAST_S and not self._shared.closed:
            self._keep(self._counts.with_one(seconds))

    def close(self) -> None:
        """Take the file away."""
        self._shared.close()
        self._path.unlink(missing_ok=True)

    def _keep(self, found: StallCounts) -> None:
        self._counts = found
        fields = (self._process, *found.counts, found.sum_s, found.longest_s)
        _FORM.pack_into(self._shared, 0, *fields)

    def _look(self) -> None:
        self._waited_s, self._looked_at = self._wait.seconds(), now()


class _CoreWait:
    """How long the thread that first asks has been ready without a core."""

    def __init__(self) -> None:
        self._file: int | None = None

    def seconds(self) -> float:
        """Return the seconds since the thread began; 0 where the system does not tell."""
        try:
            if self._file is None:
                path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0


def read_stalls(folder: Path) -> dict[str, StallCounts]:
    """Return the stalls of the processes of a runtime folder, by name."""
    found: dict[str, StallCounts] = {}
    for path in sorted(folder.glob(f"*{_ENDING}")):
        with contextlib.suppress(OSError, struct.error, UnicodeDecodeError):
            name, *counts, sum_s, longest_s = _FORM.unpack(path.read_bytes())
            process = name.rstrip(b"\0").decode()
            found[process] = StallCounts(tuple(counts), sum_s, longest_s)
    return found
