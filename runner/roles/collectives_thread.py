"""Talks to the engine's thread of a rank that tests its collectives.

One thread meets the others, runs the suite and makes every exchange, for life. It keeps its
standing where the main thread reads it, and posts what changes the rank's life.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from bus.process.clock import now as clock_now
from bus.wire.messages.collectives import CollectiveTest, RankFinding
from runner.engine import EngineMemory, LoadProgress
from runner.group.collectives import Exchanges, Suite, SuiteProgress


@dataclass(frozen=True, slots=True)
class RanksMet:
    """The ranks have met and proved themselves; the suite begins."""

    exchanges: Exchanges


@dataclass(frozen=True, slots=True)
class SuiteDone:
    """All was done."""

    finding: RankFinding


@dataclass(frozen=True, slots=True)
class SuiteFailed:
    """An exchange, or the meeting, ended in an error. `story` is for the log."""

    message: str
    story: str


CollectivesNews = RanksMet | SuiteDone | SuiteFailed


class CollectivesThread:
    """Start it once; `post` is called from it and must not wait."""

    def __init__(
        self,
        test: CollectiveTest,
        meet: Callable[[], Exchanges],
        post: Callable[[CollectivesNews], None],
    ) -> None:
        self._test = test
        self._meet = meet
        self._post = post
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.standing = SuiteProgress("forming", 0, 0, RankFinding())
        self.moved_at: float | None = None
        """When the last exchange ended; None before the first and after the last."""
        self.progress = LoadProgress("reading", 0, 0)
        self.memory = EngineMemory(0, 0, 0, 0)

    @property
    def steps_done(self) -> int:
        """Exchanges made so far."""
        return self.standing.done

    def start(self) -> None:
        self.moved_at = clock_now()
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Wait a moment for the suite's end; an exchange cannot be interrupted."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            exchanges = self._meet()
            self._post(RanksMet(exchanges))
            suite = Suite(self._test, exchanges, time.perf_counter, self._told)
            finding = suite.run()
        except Exception as error:
            self.moved_at = None
            said = str(error) or type(error).__name__
            self._post(SuiteFailed(said, traceback.format_exc()))
            return
        self.moved_at = None
        self._post(SuiteDone(finding))

    def _told(self, standing: SuiteProgress) -> None:
        self.standing = standing
        self.moved_at = clock_now()
        peak = standing.finding.peak_bytes
        self.memory = EngineMemory(0, 0, 0, peak)
