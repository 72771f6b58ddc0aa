"""Talks to a thread of its own: scans the model folders, one scan at a time.

The worker's loop starts a scan and collects its result later. So a disk that does not respond
delays only the scans, not the loop. A slow scan is followed by a longer pause: scanning takes at
most a twentieth of a core. The thread also writes when each model was last used, and deletes the KV
of deleted models and KV that was not used for long.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic

from bus.models.kv import KvLimits, delete_gone, evict
from bus.process.logs import Log
from bus.wire.cards import PassedOver
from bus.wire.ids import ModelId
from worker.models.last_used import LastUsed
from worker.models.local_models import DiskLook, LocalModels
from worker.models.passed_over import first_of

PAUSE_S = 0.75
PAUSE_SHARE = 20.0
CLOSE_S = 2.0
STUCK_S = 30.0
"""A scan of the disk that takes longer than this many seconds is logged."""
SWEEP_S = 20.0
"""Seconds between two searches for useless KV files, so that those of a deleted model are deleted
within a minute."""
MOST_PASSED_OVER, PASSED_OVER_CHARACTERS = 100, 48 << 10
"""The most unlisted entries, and the most characters of their texts, in the node card and in the
log. The count of all unlisted entries is reported as well."""
UNLOGGED = ("stray", "still_written", "being_pulled")


@dataclass(frozen=True, slots=True)
class Looked:
    """The result of a scan that began at `began_at`. `came` are the fetched or pulled models that
    had arrived before the scan began."""

    seen: DiskLook
    came: frozenset[ModelId]
    began_at: float


class Looks:
    """Scans the model folders of `models` in a thread of its own. Its methods are called in the
    loop's thread only."""

    def __init__(
        self, models: LocalModels, last_used: LastUsed, kv_files: KvLimits | None = None
    ) -> None:
        self._models = models
        self._last_used = last_used
        self._kv_files = kv_files
        self._swept_at = float("-inf")
        self._jobs: SimpleQueue[Mapping[ModelId, int] | None] = SimpleQueue()
        self._done: SimpleQueue[DiskLook | Exception] = SimpleQueue()
        self._came: frozenset[ModelId] | None = None
        self._began_at = self._next_at = self._took_s = 0.0
        self._told_stuck = False
        self._thread = threading.Thread(target=self._run, name="models-look", daemon=True)
        self._thread.start()

    def begin(self, now: float, came: Collection[ModelId], used: Mapping[ModelId, int]) -> None:
        """Start a scan if it is due, or if fetched models have arrived (`came`). Do nothing while a
        scan is running. Also store when models were `used`."""
        if self._came is None and (came or now >= self._next_at):
            self._came, self._began_at, self._told_stuck = frozenset(came), now, False
            self._jobs.put(dict(used))

    def hurry(self) -> None:
        """Make the next scan due at once."""
        self._next_at = 0.0

    def ended(self, now: float) -> Looked | None:
        """Return the result of a scan that has ended since the last call; None if none has ended.
        Raises the scan's error."""
        if self._came is None or self._done.empty():
            return None
        result, came = self._done.get(), self._came
        self._came = None
        self._next_at = now + max(PAUSE_S, PAUSE_SHARE * self._took_s)
        if isinstance(result, Exception):
            raise result
        return Looked(result, came, self._began_at)

    def is_stuck(self, now: float) -> bool:
        """Return whether the running scan has taken more than `STUCK_S`; true only once per
        scan."""
        stuck = self._came is not None and now - self._began_at > STUCK_S
        was_told, self._told_stuck = self._told_stuck, self._told_stuck or stuck
        return stuck and not was_told

    def close(self) -> None:
        """End the thread. A running scan may continue for a moment."""
        self._jobs.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (used := self._jobs.get()) is not None:
            began_at = monotonic()
            try:
                self._last_used.keep(used)
                result: DiskLook | Exception = self._models.scan()
                self._sweep(result)
            except Exception as error:
                result = error
            self._took_s = monotonic() - began_at
            self._done.put(result)

    def _sweep(self, seen: DiskLook) -> None:
        """Delete the KV files of models that are no longer on this disk, KV files that are too old,
        and KV files beyond the size limit."""
        limits = self._kv_files
        if limits is not None and monotonic() - self._swept_at >= SWEEP_S and limits.root.exists():
            self._swept_at = monotonic()
            delete_gone(limits.root, [*seen.cards, *seen.parts])
            evict(limits)


class Notices:
    """The notices about files and folders that are not models. Each is logged once. `entries` are
    the notices to announce in the node card."""

    def __init__(self, log: Log) -> None:
        self.entries: tuple[PassedOver, ...] = ()
        self._log = log

    def take(self, notices: Sequence[PassedOver]) -> None:
        """Use the notices of a new scan."""
        before = frozenset(self.entries)
        self.entries = first_of(notices, MOST_PASSED_OVER, PASSED_OVER_CHARACTERS)
        for notice in self.entries:
            if notice not in before and notice.reason not in UNLOGGED:
                text = (
                    "a model is listed, but part of it is not used"
                    if notice.taken
                    else "not listed as a model"
                )
                self._log.warning(text, path=notice.path, why=notice.why, remedy=notice.remedy)
