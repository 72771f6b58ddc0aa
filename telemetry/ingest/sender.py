"""Talks to a collector and the disk, in a thread of its own: lines of logs go there some time after
they were written.

A line is sent once at least: a place in a file is left behind when the collector has what was
before it, and kept on the disk for the next start. What the collector does not take waits in the
files, up to a bound, beyond which the oldest lines are dropped and counted; a line that it refuses
when it is sent alone is dropped, too.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bus.links.collector import HttpCollector
from bus.process.clock import now, wall
from bus.process.logs import SENT_FILE, LineCounts, Log, process_of, story_of, time_of
from telemetry.ingest.files import Taken, first_place, is_news, log_names, pass_over, take
from telemetry.ingest.lines import SentUpTo, as_sent

ANSWER_S = 10.0
"""A collector may take so long to be reached, and so long to answer."""
MOST_BYTES = 512 << 10
"""Of one request to the collector, and one more line."""
PLENTY_BYTES = 32 << 10
"""After so many there may be more, which is not waited for."""
FIRST_BYTES = 64 << 10
"""Of each file that is there before anything was ever sent."""
UNWANTED = frozenset({400, 413, 422})
"""Statuses by which a collector says that it is the lines that are wrong, or too many."""


@dataclass(frozen=True, slots=True)
class IngestTiming:
    """Seconds: files are looked at each `look_s`. A collector is asked again after `again_s`, then
    twice that, up to `rest_s`. What is wrong is said once, and another thing after `say_s`."""

    look_s: float = 1.0
    again_s: float = 1.0
    rest_s: float = 15.0
    say_s: float = 60.0


@dataclass(slots=True)
class _Batch:
    """Lines of a request, how many bytes they are, and the place after them by log file."""

    lines: list[bytes] = field(default_factory=list[bytes])
    size_bytes: int = 0
    places: dict[str, SentUpTo] = field(default_factory=dict[str, SentUpTo])

    @property
    def body(self) -> bytes:
        """Return what is posted."""
        return b"".join(line + b"\n" for line in self.lines)


class LineSender:
    """What sends the lines of a folder of logs, until it is closed."""

    def __init__(
        self,
        folder: Path,
        collector: HttpCollector,
        node: str,
        log: Log,
        timing: IngestTiming = IngestTiming(),
    ) -> None:
        self._folder = folder
        self._collector = collector
        self._node = node
        self._log = log
        self._timing = timing
        self._stop = threading.Event()
        self._counts = LineCounts()
        self._places: dict[str, SentUpTo] = {}
        self._turn = 0
        self._unreadable: set[str] = set()
        self._most_bytes = MOST_BYTES
        self._pause_s = timing.again_s
        self._said, self._said_at = "", float("-inf")
        self._told_dropped = False
        self._thread = threading.Thread(target=self._run, name="log-lines", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Begin nothing more; does not wait for a request under way."""
        self._stop.set()

    # --- of the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        self._log.info("log lines go to a collector", collector=self._collector.address)
        self._begin()
        while not self._stop.is_set():
            try:
                pause_s = self._round()
            except Exception as error:  # a defect must not end the thread
                pause_s = self._failed(f"a defect: {story_of(error)}")
            self._stop.wait(pause_s)

    def _round(self) -> float:
        """Send what there is, one request at most; return how long to rest."""
        batch = self._gathered()
        if not batch.places:
            return self._timing.look_s
        if batch.lines:
            try:
                answer = self._collector.post(batch.body)
            except OSError as error:
                return self._failed(error.strerror or str(error) or type(error).__name__)
            if answer.status in UNWANTED:
                return self._unwanted(batch, answer.status)
            if not 200 <= answer.status < 300:
                pause_s = self._failed(f"it answers with {answer.status}")
                return min(max(pause_s, answer.retry_after_s), self._timing.rest_s)
        is_behind = batch.size_bytes >= min(self._most_bytes, PLENTY_BYTES)
        self._sent(batch)
        return 0.0 if is_behind else self._timing.look_s

    def _gathered(self) -> _Batch:
        """Return what is to be sent next, some of each process that has something."""
        batch, names = _Batch(), log_names(self._folder)
        self._turn = (self._turn + 1) % max(1, len(names))  # so that none fills all requests
        for name in names[self._turn :] + names[: self._turn]:
            try:
                found = self._taken(name, self._most_bytes - batch.size_bytes)
            except OSError as error:
                self._unread(name, error)
                continue
            if found is None:
                continue
            process, read_at = process_of(name), time_of(wall())
            sent = (as_sent(line, self._node, process, read_at) for line in found.lines)
            batch.lines += [line for line in sent if line]
            batch.size_bytes += sum(map(len, found.lines))
            batch.places[name] = found.place
            if batch.size_bytes >= self._most_bytes:
                break
        return batch

    def _taken(self, name: str, most_bytes: int) -> Taken | None:
        """Return the next lines of a log file, None for none. Raises OSError."""
        path, place = self._folder / name, self._place_of(name)
        if place is None or not is_news(path, place):
            return None
        return take(path, self._within_bounds(name, path, place), most_bytes)

    def _unread(self, name: str, error: OSError) -> None:
        """Say once that a log file cannot be read; the others go on."""
        if name not in self._unreadable:
            self._unreadable.add(name)
            self._log.warning("a log file is not sent", file=name, why=error.strerror)

    def _place_of(self, name: str, most_bytes: int | None = None) -> SentUpTo | None:
        """Return the place in a file, the first one where there is none; `most_bytes` from its end
        at most. Raises OSError."""
        if name not in self._places:
            place = first_place(self._folder / name, most_bytes)
            if place is not None:
                self._places[name] = place
        return self._places.get(name)

    def _within_bounds(self, name: str, path: Path, place: SentUpTo) -> SentUpTo:
        """Return the place, or a later one where too much is ahead; what is between is dropped."""
        passed = pass_over(path, place)
        if passed is None:
            return place
        self._dropped(passed.lines)
        if passed.is_torn:
            self._log.warning("a log file went before all of its lines were sent", file=name)
        self._places[name] = passed.place
        self._keep()
        return passed.place

    def _sent(self, batch: _Batch) -> None:
        self._counts = replace(self._counts, sent=self._counts.sent + len(batch.lines))
        self._leave(batch)
        self._most_bytes = min(MOST_BYTES, 2 * self._most_bytes)
        self._pause_s, self._told_dropped = self._timing.again_s, False
        if self._said and batch.lines:
            self._said = ""
            dropped = self._counts.dropped
            self._log.info("log lines reach the collector again", dropped_so_far=dropped)

    def _unwanted(self, batch: _Batch, status: int) -> float:
        """Have fewer lines sent next time; drop one that was sent alone."""
        if len(batch.lines) == 1:
            self._dropped(1)
            self._leave(batch)
        else:
            self._most_bytes = max(1, batch.size_bytes // 2)
        return self._failed(f"it refuses lines with {status}")

    def _leave(self, batch: _Batch) -> None:
        self._places |= batch.places
        self._keep()

    def _failed(self, why: str) -> float:
        """Say what is wrong; return how long to rest."""
        is_new = not self._said or (
            self._said != why and now() - self._said_at >= self._timing.say_s
        )
        if is_new:
            self._said, self._said_at = why, now()
            address = self._collector.address
            self._log.warning("log lines do not reach the collector", collector=address, why=why)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._timing.rest_s)
        return pause_s

    def _dropped(self, lines: int) -> None:
        """Count lines that are not sent; say it once until some are sent again."""
        self._counts = replace(self._counts, dropped=self._counts.dropped + lines)
        if lines and not self._told_dropped:
            self._told_dropped = True
            dropped = self._counts.dropped
            self._log.warning("log lines are dropped, the oldest first", dropped_so_far=dropped)

    # --- kept for the next start -----------------------------------------------------------------

    def _begin(self) -> None:
        """Go on where the last start ended; at the first one with the ends of the files."""
        path = self._folder / SENT_FILE
        try:
            told: Mapping[str, Any] = json.loads(path.read_bytes())
            places = {name: SentUpTo(*map(int, place)) for name, place in told["places"].items()}
            counts = LineCounts(int(told["sent"]), int(told["dropped"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            for name in log_names(self._folder):
                try:
                    self._place_of(name, FIRST_BYTES)
                except OSError as error:
                    self._unread(name, error)
            self._keep()
        else:
            self._places, self._counts = places, counts

    def _keep(self) -> None:
        places = {name: [place.file, place.offset] for name, place in self._places.items()}
        told = {"places": places, "sent": self._counts.sent, "dropped": self._counts.dropped}
        fresh = self._folder / f"{SENT_FILE}.new"
        with contextlib.suppress(OSError):  # a full disk: what was sent may be sent once more
            fresh.write_text(json.dumps(told))
            fresh.replace(self._folder / SENT_FILE)
