"""Talks to the disk: reads and writes the files with one model's kept prefixes, in threads of its
own.

The engine's thread passes computed arrays as bytes, so no thread here calls MLX. Writing has the
lowest priority and reading a normal one, so each has its own thread, which starts with its first
task. No error is raised: an error becomes a report to the scheduler, and is logged once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from bus.models.kv import (
    BadRun,
    DiskOrder,
    DiskReport,
    DiskRun,
    KvKey,
    KvLimits,
    StoredPart,
    Unwanted,
    evict,
    make_private,
    model_folder,
    read_header,
    read_parts,
    run_of,
    run_path,
    write_run,
)
from runner.engine import EntryId

MOST_QUEUED = 8
NICENESS = 19
CLOSE_S = 0.5
"""How long a runner that ends waits for files that are not written yet."""


@dataclass(slots=True, eq=False)
class _Job:
    """A kept prefix that must be written. `wanted` False: stop writing it."""

    entry: EntryId
    run: DiskRun
    parts: Sequence[StoredPart]
    wanted: bool = True


class RunFiles:
    """The `PrefixDisk` of one model: the files with its kept prefixes (runs of KV). `keys` maps
    each adapter's name (empty: no adapter) to the key of its KV. A key covers everything on which
    KV depends except the tokens, and has its own folder."""

    def __init__(self, limits: KvLimits, model: str, keys: Mapping[str, KvKey]) -> None:
        self.least_tokens = limits.least_tokens
        self.keys = dict(keys)
        self.moves = limits.moves
        self.wake: Callable[[], None] = _nothing
        self.say: Callable[[str], None] = _ignored
        self._limits = limits
        self._folder = model_folder(limits.root, model)
        self._lock = threading.Lock()
        self._jobs: deque[_Job] = deque()
        self._writing: _Job | None = None
        self._has_job = threading.Event()
        self._orders: SimpleQueue[DiskOrder] = SimpleQueue()
        self._reports: deque[DiskReport] = deque()
        self._parts: dict[str, Sequence[StoredPart]] = {}
        self._runs: dict[str, tuple[str, Path]] = {}
        """The adapter and the file of each run that was reported to the scheduler, by the run's
        name."""
        self._threads: dict[str, threading.Thread] = {}
        self._reported: set[str] = set()
        self._closing = False
        if self._folder.exists():
            self.submit([DiskOrder("look")])

    # --- the scheduler's side ----------------------------------------------------------

    def submit(self, orders: Sequence[DiskOrder]) -> None:
        """Pass orders to the reading thread."""
        for order in orders:
            self._orders.put(order)
        if orders:
            self._start("kv-read", self._read_on)

    def reports(self) -> list[DiskReport]:
        """Return the reports since the last call, oldest first."""
        reports: list[DiskReport] = []
        while self._reports:
            reports.append(self._reports.popleft())
        return reports

    # --- the engine's side -------------------------------------------------------------

    def write(self, entry: EntryId, run: DiskRun, parts: Sequence[StoredPart]) -> None:
        """Queue a run to be written. If too many runs wait, the oldest is dropped and reported as
        unsaved."""
        with self._lock:
            self._jobs.append(_Job(entry, run, parts))
            late = self._jobs.popleft() if len(self._jobs) > MOST_QUEUED else None
        if late is not None:
            self._report(DiskReport("unsaved", late.run))
        self._has_job.set()
        self._start("kv-write", self._write_on)

    def give_up(self, entry: EntryId) -> None:
        """Do not write the run of this entry, because its memory is needed. Its arrays are freed
        soon."""
        with self._lock:
            given_up = [job for job in self._jobs if job.entry == entry]
            for job in given_up:
                self._jobs.remove(job)
            if self._writing is not None and self._writing.entry == entry:
                self._writing.wanted = False
        for job in given_up:
            self._report(DiskReport("unsaved", job.run))

    def take(self, name: str) -> Sequence[StoredPart] | None:
        """Return the arrays of a run that was read, and forget them. Return None if that run was
        not read."""
        with self._lock:
            return self._parts.pop(name, None)

    def close(self) -> None:
        """Wait at most `CLOSE_S` for files that are not written yet, then end the threads."""
        with self._lock:
            is_writing = bool(self._jobs) or self._writing is not None
        self._closing = True
        self._has_job.set()
        self._orders.put(DiskOrder("look"))
        writer = self._threads.get("kv-write")
        if writer is not None and is_writing:
            writer.join(CLOSE_S)
        with self._lock:
            if self._writing is not None:
                self._writing.wanted = False
            self._parts.clear()

    # --- the threads -------------------------------------------------------------------

    def _start(self, name: str, work: Callable[[], None]) -> None:
        if name not in self._threads and not self._closing:
            thread = self._threads[name] = threading.Thread(target=work, name=name, daemon=True)
            thread.start()

    def _report(self, report: DiskReport) -> None:
        self._reports.append(report)
        self.wake()

    def _write_on(self) -> None:
        if sys.platform.startswith("linux"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            self._has_job.wait()
            with self._lock:
                job = self._writing = self._jobs.popleft() if self._jobs else None
                if job is None:
                    self._has_job.clear()
                    if self._closing:
                        return
            if job is not None:
                self._report(self._outcome(job))
                job.parts = ()
                with self._lock:
                    self._writing = None

    def _outcome(self, job: _Job) -> DiskReport:
        """Write a run, and return the report about it."""
        run, key = job.run, self.keys.get(job.run.adapter)
        size = sum(len(part.content) for part in job.parts)
        if key is None or size > self._limits.most_bytes:
            return DiskReport("unsaved", run)
        path = run_path(self._folder / key.folder, run.name)
        try:
            evict(self._limits, room_bytes=size)
            make_private(path.parent, self._limits.root)
            size = write_run(path, run, key.how, job.parts, lambda: job.wanted)
            evict(self._limits)
        except Unwanted:
            return DiskReport("unsaved", run)
        except OSError as error:
            self._say_once("write", f"the KV of a prompt was not written to disk: {error}")
            return DiskReport("unsaved", run)
        self._reported.discard("write")
        self._runs[run.name] = run.adapter, path
        return DiskReport("written", DiskRun(run.name, run.seed, run.tokens, run.adapter, size))

    def _read_on(self) -> None:
        while not self._closing:
            order = self._orders.get()
            match order.what:
                case "look":
                    self._look()
                case "read":
                    self._read(order.name)
                case "forget":
                    self.take(order.name)
                case "delete":
                    self._delete(order.name)

    def _look(self) -> None:
        """Report the runs on disk that were not reported yet. Delete damaged files."""
        for adapter, key in self.keys.items():
            try:
                paths = [Path(entry.path) for entry in os.scandir(self._folder / key.folder)]
            except OSError:
                continue
            for path in paths:
                name, _ = run_of(path.name) or ("", "")
                if name and name not in self._runs and not self._closing:
                    run = self._opened(path, name, key, with_parts=False)
                    if run is not None:
                        self._runs[name] = adapter, path
                        self._report(DiskReport("found", run))

    def _read(self, name: str) -> None:
        adapter, path = self._runs.get(name, ("", None))
        key = self.keys.get(adapter)
        began, run = time.monotonic(), None
        if key is not None and path is not None:
            run = self._opened(path, name, key, with_parts=True)
        if run is None:
            self._runs.pop(name, None)
            self._report(DiskReport("lost", DiskRun(name, b"", array("i"))))
            return
        self._report(DiskReport("read", run, time.monotonic() - began))

    def _opened(self, path: Path, name: str, key: KvKey, *, with_parts: bool) -> DiskRun | None:
        """Return the run in a file. With `with_parts`, also keep its arrays for `take`. Return None
        if the file is missing, unreadable or damaged; a damaged file is deleted."""
        try:
            with path.open("rb") as file:
                header = read_header(file, name, key.how)
                if with_parts:
                    parts = read_parts(file, header, lambda: not self._closing)
                    with self._lock:
                        self._parts[name] = parts
                    os.utime(path)
            self._reported.discard("read")
            return header.run
        except (FileNotFoundError, Unwanted):
            return None
        except OSError as error:
            self._say_once("read", f"the KV of a prompt could not be read from disk: {error}")
            return None
        except BadRun as error:
            self.say(f"deleted the KV of a prompt on disk, {path.name}: {error}")
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def _delete(self, name: str) -> None:
        _, path = self._runs.pop(name, ("", None))
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def _say_once(self, kind: str, text: str) -> None:
        """Log a fault, unless a fault of this kind was logged and has not ended since."""
        if kind not in self._reported:
            self._reported.add(kind)
            self.say(text)


def _nothing() -> None:
    pass


def _ignored(_text: str) -> None:
    pass
