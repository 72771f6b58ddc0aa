"""Talks to the engine thread: everything MLX, and the loop that keeps it one step ahead.

One thread loads the model and makes every call of its engine, for life. The scheduler is
shared under `lock`, which is never held while the engine computes: the main thread submits,
cancels and pauses at once, whatever the device does. What happened in a step is posted as
one batch, before the next step is issued, for issuing may wait for a device that is behind.
The loop waits on an event when there is nothing to do. An exception of the engine is told and
ends the thread; nothing is retried.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from bus.process.clock import now as clock_now
from bus.process.memory import tidy
from runner.engine import Engine, EngineFacts, EngineMemory, LoadProgress
from runner.schedule.rows import RowEvent
from runner.schedule.scheduler import STEPS_AHEAD, Scheduler, SchedulerLoad

MEMORY_EVERY_S = 1.0
IDLE_S = 0.5
"""With nothing to do for so long, the engine gives back what is free."""

LoadEngine = Callable[[Callable[[LoadProgress], None]], Engine]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is in memory; the scheduler takes requests from now on."""

    facts: EngineFacts


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model could not be loaded, and why."""

    message: str


@dataclass(frozen=True, slots=True)
class Stepped:
    """What happened to rows by the end of `step`, in order."""

    step: int
    events: tuple[RowEvent, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """The engine raised; the thread has ended."""

    message: str
    story: str


News = Loaded | LoadFailed | Stepped | Broken


class EngineThread:
    """Start it once; `post` is called from it and must not wait."""

    def __init__(
        self,
        load: LoadEngine,
        schedule: Callable[[EngineFacts], Scheduler],
        post: Callable[[News], None],
    ) -> None:
        self._load_engine = load
        self._schedule = schedule
        self._post = post
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.lock = threading.Lock()
        self.scheduler: Scheduler | None = None
        self.progress = LoadProgress("reading", 0, 0)
        self.memory = EngineMemory(0, 0, 0, 0)
        self.steps_done = 0
        self._tidied_at = 0
        self.last_step_s = 0.0
        self.busy_since: float | None = None
        """Since when the engine has owed its next result; None while it owes none."""

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something was changed under the lock."""
        self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """Have the loop end after its step; False when it did not within `timeout_s`."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def expected_s(self) -> float:
        """What the engine is expected to take over what it has been given."""
        if self.scheduler is None:
            return 0.0
        with self.lock:
            return self.scheduler.expected_s()

    def load(self) -> SchedulerLoad | None:
        """What the scheduler has to do now; None before the model is loaded."""
        if self.scheduler is None:
            return None
        with self.lock:
            return self.scheduler.load()

    def _run(self) -> None:
        try:
            engine = self._load_engine(self._progressed)
        except Exception as error:
            traceback.print_exc()
            self._post(LoadFailed(str(error) or type(error).__name__))
            return
        scheduler = self._schedule(engine.facts)
        self.scheduler = scheduler
        self.memory = engine.memory()
        self._post(Loaded(engine.facts))
        try:
            self._serve(engine, scheduler)
            engine.close()
        except Exception as error:
            self._post(Broken(f"{type(error).__name__}: {error}", traceback.format_exc()))

    def _progressed(self, progress: LoadProgress) -> None:
        self.progress = progress

    def _serve(self, engine: Engine, scheduler: Scheduler) -> None:
        events: list[RowEvent] = []
        measured_at = 0.0
        while not self._stopping:
            self._wake.clear()
            now = clock_now()
            with self.lock:
                events += scheduler.advance(now)
                plan, more = scheduler.plan(now)
                events += more
                unread = scheduler.unread
            if events:
                self._post(Stepped(self.steps_done, tuple(events)))
                events = []
            if plan is not None:
                if self.busy_since is None:
                    self.busy_since = now
                engine.issue(plan)
            if now - measured_at >= MEMORY_EVERY_S or not unread:
                self.memory, measured_at = engine.memory(), now
            if unread == STEPS_AHEAD or (unread and plan is None):
                result = engine.read()
                now = clock_now()
                with self.lock:
                    events = scheduler.commit(result, now)
                    unread = scheduler.unread
                self.steps_done, self.last_step_s = result.step, result.step_s
                self.busy_since = now if unread else None
            elif plan is None:
                self._rest(engine, scheduler)

    def _rest(self, engine: Engine, scheduler: Scheduler) -> None:
        """Wait for something to do; the first moment of an idle time, the engine tidies."""
        with self.lock:
            wake_at = scheduler.wake_at()
        wait_s = None if wake_at is None else max(wake_at - clock_now(), 0.0)
        if self._tidied_at != self.steps_done and (wait_s is None or wait_s > IDLE_S):
            if self._wake.wait(IDLE_S):
                return
            self._tidied_at = self.steps_done
            tidy()
            engine.rest()
            self.memory = engine.memory()
            return
        self._wake.wait(wait_s)
