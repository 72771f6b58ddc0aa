"""Talks to a thread of its own: looks at the folders of models, one look after the other.

The worker's loop begins a look and asks later for what it saw; a disk that does not answer holds up
looks alone. A look that took long is followed by a pause that is longer still: looking takes a
twentieth of a core at most. When each model was used last is written there, too.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic

from bus.wire.ids import ModelId
from worker.models.last_used import LastUsed
from worker.models.local_models import DiskLook, LocalModels

PAUSE_S = 0.75
PAUSE_SHARE = 20.0
CLOSE_S = 2.0
STUCK_S = 30.0
"""A look that takes longer is spoken of."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look saw, and which of the models that were fetched or pulled had come before it."""

    seen: DiskLook
    came: frozenset[ModelId]


class Looks:
    """Looks at `models`, in a thread. Called from the loop's thread alone."""

    def __init__(self, models: LocalModels, last_used: LastUsed) -> None:
        self._models = models
        self._last_used = last_used
        self._jobs: SimpleQueue[Mapping[ModelId, int] | None] = SimpleQueue()
        self._done: SimpleQueue[DiskLook | Exception] = SimpleQueue()
        self._came: frozenset[ModelId] | None = None
        self._began_at = self._next_at = self._took_s = 0.0
        self._told_stuck = False
        self._thread = threading.Thread(target=self._run, name="models-look", daemon=True)
        self._thread.start()

    def begin(self, now: float, came: Collection[ModelId], used: Mapping[ModelId, int]) -> None:
        """Begin a look where it is time for one or a fetched model `came`, unless one is under
        way; write down when models were `used`."""
        if self._came is None and (came or now >= self._next_at):
            self._came, self._began_at, self._told_stuck = frozenset(came), now, False
            self._jobs.put(dict(used))

    def ended(self, now: float) -> Looked | None:
        """Return what a look saw that has ended since this was asked last, None without one.
        Raises what the look raised."""
        if self._came is None or self._done.empty():
            return None
        result, came = self._done.get(), self._came
        self._came = None
        self._next_at = now + max(PAUSE_S, PAUSE_SHARE * self._took_s)
        if isinstance(result, Exception):
            raise result
        return Looked(result, came)

    def is_stuck(self, now: float) -> bool:
        """Return whether the look under way has lasted too long, once for each look."""
        stuck = self._came is not None and now - self._began_at > STUCK_S
        told, self._told_stuck = self._told_stuck, self._told_stuck or stuck
        return stuck and not told

    def close(self) -> None:
        """End the thread; a look under way may take a moment more."""
        self._jobs.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (used := self._jobs.get()) is not None:
            began_at = monotonic()
            try:
                self._last_used.keep(used)
                result: DiskLook | Exception = self._models.scan()
            except Exception as error:
                result = error
            self._took_s = monotonic() - began_at
            self._done.put(result)
