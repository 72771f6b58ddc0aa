"""Talks to the operating system: measures how long a loop blocked all its other work. All processes
can read the result.

A stall is the wall time of one iteration of a loop, without the time in which its thread was ready
but had no processor core. Waiting for the interpreter's lock (GIL) counts. Waiting for a core does
not; only Linux separates the two, elsewhere both count. Iterations of 10 ms and more are counted in
a small mapped file per process. Writing to it costs almost nothing, and it can be read while the
loop is blocked.
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
LOOK_AGAIN_S, CALM_AGAIN_S = 0.05, 1.0
"""The time that a thread waited for a core is measured again if the last measurement is older than
this at the beginning of an iteration. The second interval is for a thread that hardly waited since
the measurement before: reading the file costs an idle process more than anything else here."""
CALM_RATIO = 0.002
"""A thread that waited for a core for less than this share of the time hardly waited."""
_ENDING = ".stalls"
_FORM = struct.Struct(f"<64s{len(BOUNDS_S) + 1}Qdd")


@dataclass(frozen=True, slots=True)
class StallCounts:
    """The stalls of one process. `counts` has the number of stalls up to each of `BOUNDS_S`, and
    last that of all longer ones. `sum_s` is the total of all stalls."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0
    longest_s: float = 0.0

    def with_one(self, seconds: float) -> StallCounts:
        """Return the counts with one more stall, which lasted this many seconds."""
        place = sum(seconds > bound for bound in BOUNDS_S)
        counts = tuple(count + (index == place) for index, count in enumerate(self.counts))
        return StallCounts(counts, self.sum_s + seconds, max(self.longest_s, seconds))


class StallMeter:
    """Measures the iterations of one loop. Call `woke`, then `done`, once per iteration, all in one
    thread."""

    def __init__(self, folder: Path, process: str) -> None:
        """Count the stalls in the file `<folder>/<process>.stalls`, from zero. The file exists
        until `close`."""
        self._path = folder / f"{process.replace(':', '-')}{_ENDING}"
        self._process = process.encode()
        self._shared = mapped_file(self._path, _FORM.size)
        self._keep(StallCounts())
        self._wait = _CoreWait()
        self._woke_at = now()
        self._waited_s = 0.0
        self._looked_at = float("-inf")
        self._again_s = LOOK_AGAIN_S

    def woke(self) -> None:
        """Begin an iteration of the loop."""
        self._woke_at = now()
        if self._woke_at - self._looked_at > self._again_s:
            self._look()

    def done(self) -> None:
        """End the iteration, and count it if it was long."""
        turn_s = now() - self._woke_at
        if turn_s < LEAST_S:
            return
        before_s = self._waited_s
        self._look()
        self.add(turn_s - (self._waited_s - before_s))

    def late(self, seconds: float) -> None:
        """Count an iteration by the lateness of a timer, which was due `seconds` ago.

        Call this each time that the timer fires. The time that its thread has waited for a core
        since the last firing does not count.
        """
        before_s = self._waited_s
        self._look()
        self.add(seconds - (self._waited_s - before_s))

    def add(self, seconds: float) -> None:
        """Count a stall, unless it is short or the file is closed."""
        if seconds >= LEAST_S and not self._shared.closed:
            self._keep(self._counts.with_one(seconds))

    def close(self) -> None:
        """Delete the file."""
        self._shared.close()
        self._path.unlink(missing_ok=True)

    def _keep(self, counts: StallCounts) -> None:
        self._counts = counts
        fields = (self._process, *counts.counts, counts.sum_s, counts.longest_s)
        _FORM.pack_into(self._shared, 0, *fields)

    def _look(self) -> None:
        before_s, before_at = self._waited_s, self._looked_at
        self._waited_s, self._looked_at = self._wait.seconds(), now()
        waited_s = self._waited_s - before_s
        passed_s = min(CALM_AGAIN_S, self._looked_at - before_at)
        self._again_s = CALM_AGAIN_S if waited_s < CALM_RATIO * passed_s else LOOK_AGAIN_S


class _CoreWait:
    """Measures how long one thread was ready to run but had no CPU core. It is the thread that
    calls `seconds` first."""

    def __init__(self) -> None:
        self._file: int | None = None

    def seconds(self) -> float:
        """Return the thread's total waiting time in seconds; 0 if the system does not report it."""
        try:
            if self._file is None:
                path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0


def read_stalls(folder: Path) -> dict[str, StallCounts]:
    """Return the stalls of all processes that have a file in a runtime folder, by process name."""
    stalls: dict[str, StallCounts] = {}
    for path in sorted(folder.glob(f"*{_ENDING}")):
        with contextlib.suppress(OSError, struct.error, UnicodeDecodeError):
            name, *counts, sum_s, longest_s = _FORM.unpack(path.read_bytes())
            process = name.rstrip(b"\0").decode()
            stalls[process] = StallCounts(tuple(counts), sum_s, longest_s)
    return stalls
