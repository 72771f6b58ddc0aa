"""Talks to the machine's memory and a file: how many bytes per second its processor reads.

Decoding reads all active weights for each token, so this figure predicts tokens per second. The
speed is that of one thread, because MLX decodes with one thread on a processor. The thread searches
a buffer, larger than most caches, for a byte that is not there. The rate is in bytes per second of
processor time, so that waits for a core do not lower it. The file is for a machine; all homes share
it. A measurement that other programs disturbed is repeated while the node is idle.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from math import floor, log10
from pathlib import Path

import psutil

from bus.process.logs import Log
from bus.wire.messages.control import SlotHello
from worker.machine.awake import has_work

BUFFER_BYTES, FREE_RATIO = 128 << 20, 4
"""The size of the searched buffer. Nothing is measured unless the free memory is at least
`FREE_RATIO` times that size."""
ROUNDS, ROUND_S = 4, 0.05
WAITED, SPREAD = 0.05, 0.25
"""A measurement is disturbed if its thread waited for a core for more than the share `WAITED` of
the time. It is also disturbed if its rounds differ by more than the share `SPREAD`."""
PAUSE_S, MOST_PAUSE_S = 60.0, 3_600.0
"""Seconds until a disturbed measurement is repeated; each pause is twice as long as the last."""


@dataclass(frozen=True, slots=True)
class ReadSpeed:
    """The measured speed of the memory on the processor `chip`."""

    bytes_per_s: float
    disturbed: bool
    chip: str


class MemorySpeed:
    """Measures the speed once for a machine. `bytes_per_s` is the result; it is 0 before the
    measurement. If `file` is None, nothing is measured."""

    def __init__(
        self,
        file: Path | None,
        chip: str,
        log: Log,
        measure: Callable[[], tuple[Sequence[float], float]] | None = None,
    ) -> None:
        self.bytes_per_s = 0.0
        self._file, self._chip, self._log = file, chip, log
        self._measure = measure or rates
        self._steps: dict[str, int] = {}
        self._next_at, self._pause_s = 0.0, PAUSE_S
        self._thread: threading.Thread | None = None
        self._is_done = file is None
        self._is_known = False
        if file is not None:
            self._accept(read_speed(file, chip))
            self._is_known = self.bytes_per_s > 0

    def look(self, hellos: Sequence[SlotHello], now: float) -> None:
        """Start a measurement in a thread, if it is due and no runner of this node has work."""
        is_busy = any(has_work(hello, self._steps.get(hello.boot)) for hello in hellos)
        self._steps = {hello.boot: hello.step for hello in hellos}
        if self._is_known:  # by an earlier node, which was disturbed
            self._is_known, self._next_at = False, now + PAUSE_S
        running = self._thread is not None and self._thread.is_alive()
        if self._is_done or is_busy or running or now < self._next_at:
            return
        self._next_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, MOST_PAUSE_S)
        self._thread = threading.Thread(target=self._run, name="memory-speed", daemon=True)
        self._thread.start()

    def wait(self, within_s: float) -> None:
        """Wait until the thread ends."""
        if self._thread is not None:
            self._thread.join(within_s)

    def _run(self) -> None:
        assert self._file is not None, "without a file nothing is measured"
        try:
            with _alone(self._file):
                before = read_speed(self._file, self._chip)
                if before is not None and not before.disturbed:
                    self._accept(before)
                    return
                per_round, waited = self._measure()
                if not per_round:
                    self._log.info("memory speed not measured: too little free memory")
                    return
                speed = judge(per_round, waited, self._chip, before)
                _keep(self._file, speed)
            self._accept(speed)
            rate = f"{speed.bytes_per_s / 1e9:g} GB/s"
            self._log.info("measured the memory's speed", rate=rate, disturbed=speed.disturbed)
        except (OSError, ValueError) as error:
            self._log.warning("cannot measure the memory's speed", error=str(error))

    def _accept(self, speed: ReadSpeed | None) -> None:
        if speed is not None:
            self.bytes_per_s, self._is_done = speed.bytes_per_s, not speed.disturbed


def judge(
    per_round: Sequence[float], waited: float, chip: str, before: ReadSpeed | None
) -> ReadSpeed:
    """Return a measurement from the bytes per second of each round. `waited`: the share of the time
    for which the thread waited for a core. Disturbances can only lower the speed, so the higher of
    two disturbed figures counts. The speed is rounded to two digits, so that equal machines have
    equal figures."""
    middle = statistics.median(per_round)
    disturbed = waited > WAITED or max(per_round) - min(per_round) > SPREAD * middle
    digits = floor(log10(middle)) - 1
    speed = ReadSpeed(round(middle, -digits), disturbed, chip)
    if disturbed and before is not None and before.bytes_per_s > speed.bytes_per_s:
        return replace(before, disturbed=True)
    return speed


def rates() -> tuple[list[float], float]:
    """Return the bytes per second of each round, and the share of the time for which the thread
    waited for a core. The rounds are empty if there is too little free memory."""
    if psutil.virtual_memory().available < FREE_RATIO * BUFFER_BYTES:
        return [], 0.0
    search = ctypes.CDLL(None).memchr
    search.restype = ctypes.c_void_p
    search.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    with mmap.mmap(-1, BUFFER_BYTES) as memory:
        buffer = (ctypes.c_char * BUFFER_BYTES).from_buffer(memory)
        try:
            ctypes.memset(buffer, 1, BUFFER_BYTES)
            rounds = [_read(search, ctypes.addressof(buffer)) for _ in range(ROUNDS)]
        finally:
            del buffer
    return [rate for rate, _ in rounds], statistics.fmean(waited for _, waited in rounds)


def _read(search: Callable[..., object], address: int) -> tuple[float, float]:
    """Read a buffer for `ROUND_S`; return the bytes per second of processor time, and the share of
    the time in which this thread did not run."""
    began_at, began_s, done = time.monotonic(), time.thread_time(), 0
    while time.monotonic() - began_at < ROUND_S:
        search(address, 0, BUFFER_BYTES)
        done += BUFFER_BYTES
    ran_s = max(1e-6, time.thread_time() - began_s)
    passed_s = max(ran_s, time.monotonic() - began_at)
    return done / ran_s, 1.0 - ran_s / passed_s


def read_speed(file: Path, chip: str) -> ReadSpeed | None:
    """Return the measurement in a file; None if there is none, or if it was made on another
    machine."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        facts = json.loads(file.read_bytes())
        speed = ReadSpeed(
            float(facts["bytes_per_s"]),
            bool(facts["disturbed"]),
            str(facts["chip"]),
        )
        return speed if speed.chip == chip else None
    return None


def _keep(file: Path, speed: ReadSpeed) -> None:
    draft = file.with_suffix(f".draft-{os.getpid()}")
    draft.write_text(json.dumps(asdict(speed)))
    os.replace(draft, file)


@contextlib.contextmanager
def _alone(file: Path) -> Generator[None]:
    """Hold the file's lock, so that nodes that start together do not disturb each other."""
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
