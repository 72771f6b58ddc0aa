"""Talks to the engine of a lead runner: the loop that keeps it one step ahead.

The scheduler is shared with the main thread under a lock that is never held while the engine
computes, so submit, cancel and pause never wait for the device. The events of a step are posted as
one batch before the next step is issued, because issuing may wait for a device that is behind. The
loop waits on an event when there is no work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bus.models.kv import DiskReport, KvKey, RunQuestion, TokenChain
from bus.process.clock import now as clock_now
from bus.process.memory import tidy
from runner.engine import (
    Engine,
    EngineFacts,
    EngineStatus,
    LoadProgress,
    StepPlan,
    StepResult,
)
from runner.group.rank_recorder import RankRecorder
from runner.lead.memory_watch import MemoryWatch
from runner.schedule import STEPS_AHEAD, RowEvent, Scheduler, SchedulerLoad

MEMORY_EVERY_S = 1.0
IDLE_S = 0.5
"""After this idle time the engine frees its unused memory."""

LoadEngine = Callable[[Callable[[LoadProgress], None]], Engine]


@dataclass(frozen=True, slots=True)
class Stepped:
    """The row events up to the end of `step`, in order. The step's result was read at `read_at` and
    took `step_s`; its rows were admitted at `planned_at`."""

    step: int
    events: tuple[RowEvent, ...]
    read_at: float
    step_s: float
    planned_at: float


class LeadLoop:
    """The `EngineLoop` of rank 0, or of a single runner.

    `load` takes a progress callback and returns the engine; `schedule` makes its scheduler. `post`
    is called from the engine's thread and must not block. `watch` reports a lack of memory. `facts`
    and `scheduler` are None until the engine is loaded. The main thread uses the scheduler only
    with the lock held (`scheduling`). Only this thread writes `status`. `spans` records what this
    rank does for traced requests, in a group. `say` is called with what an operator should know
    about the prefixes on disk, by any thread. `seek` is called with questions to other nodes about
    prefixes; None: other nodes are not asked.
    """

    def __init__(
        self,
        load: LoadEngine,
        schedule: Callable[[EngineFacts], Scheduler],
        post: Callable[[Stepped], None],
        watch: MemoryWatch,
    ) -> None:
        self._load_engine = load
        self._schedule = schedule
        self._post = post
        self._watch = watch
        self._engine: Engine | None = None
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._stopping = False
        self._has_reports = True
        self._tidied_at = 0
        self._hurries = False
        self.facts: EngineFacts | None = None
        self.scheduler: Scheduler | None = None
        self.status = EngineStatus()
        self.spans: RankRecorder | None = None
        self.say: Callable[[str], None] = lambda _text: None
        self.seek: Callable[[RunQuestion, KvKey], None] | None = None

    # --- the main thread -------------------------------------------------------------------

    @contextmanager
    def scheduling(self) -> Generator[Scheduler]:
        """Hold the lock and yield the scheduler; afterwards wake the loop, so that it plans again.

        Only after the engine is loaded.
        """
        scheduler = self.scheduler
        assert scheduler is not None, "the engine is not loaded"
        with self._lock:
            yield scheduler
        self._wake.set()

    def stop(self) -> None:
        """Make `run` return after the current step."""
        self._stopping = True
        self._wake.set()

    def expected_s(self) -> float:
        """Return the expected seconds of all unread steps together, for the watchdog."""
        if self.scheduler is None:
            return 0.0
        with self._lock:
            return self.scheduler.expected_s()

    def kv_way(self, adapter: str) -> str:
        """Return a hash of how this engine computes KV, because only nodes with the same hash can
        share KV. Empty if no KV moves between nodes."""
        disk = None if self._engine is None else self._engine.disk
        key = disk.keys.get(adapter) if disk is not None and disk.moves else None
        return "" if key is None else key.how

    def is_writing(self, prompt: TokenChain) -> bool:
        """Return whether KV of a prompt is being written to disk. If the engine has no other work,
        it hands the KV over to the files' threads at once."""
        disk = None if self.scheduler is None else self.scheduler.disk
        if disk is None:
            return False
        with self._lock:
            is_writing = disk.is_writing(prompt)
        if is_writing and self._tidied_at != self.status.steps_done:
            self._hurries = True
            self._wake.set()
        return is_writing

    def awaits_files(self) -> bool:
        """Return whether a row may be waiting for a file of KV, of this node or another."""
        disk = None if self.scheduler is None else self.scheduler.disk
        return disk is not None and bool(disk.reads or disk.seeks.open)

    def scheduler_load(self) -> SchedulerLoad | None:
        """Return the load of the scheduler; None before the model is loaded."""
        if self.scheduler is None:
            return None
        with self._lock:
            return self.scheduler.load()

    # --- the engine's thread ---------------------------------------------------------------

    def load(self) -> None:
        engine = self._engine = self._load_engine(self._progressed)
        self.facts = engine.facts
        self.scheduler = self._schedule(engine.facts)
        self.status.memory = engine.memory()
        if engine.disk is not None:
            engine.disk.wake, engine.disk.say = self._reported, self.say
        if engine.disk is not None and self.scheduler.disk is not None:
            self.scheduler.disk.seeks.is_on = engine.disk.moves and self.seek is not None

    def run(self) -> None:
        """Compute what the scheduler plans until `stop`, then close the engine."""
        assert self._engine is not None and self.scheduler is not None, "the engine is not loaded"
        self._serve(self._engine, self.scheduler)
        self._engine.close()

    def _reported(self) -> None:
        """Wake the loop, so that it takes the reports of the threads that read and write KV files.
        These threads call this."""
        self._has_reports = True
        self._wake.set()

    def _progressed(self, progress: LoadProgress) -> None:
        self.status.progress = progress

    def _serve(self, engine: Engine, scheduler: Scheduler) -> None:
        status, spans = self.status, self.spans
        events: list[RowEvent] = []
        measured_at = read_at = 0.0
        while not self._stopping:
            self._wake.clear()
            now = clock_now()
            plan, more, unread = self._plan(engine, scheduler, now)
            events += more
            if events:
                news = Stepped(status.steps_done, tuple(events), read_at, status.last_step_s, now)
                self._post(news)
                events = []
            if plan is not None:
                if status.busy_since is None:
                    status.busy_since = now
                status.steps_begun = plan.step
                if spans is not None:
                    spans.begin(plan)
                engine.issue(plan)
                if plan.prefill:
                    self._watch.reads_prompt = True
            if now - measured_at >= MEMORY_EVERY_S or not unread:
                status.memory, measured_at = engine.memory(), now
                self.facts = engine.facts
            if unread == STEPS_AHEAD or (unread and plan is None):
                result = self._read(engine, spans)
                read_at = now = clock_now()
                with self._lock:
                    events = scheduler.commit(result, now)
                    unread = scheduler.unread
                status.steps_done, status.last_step_s = result.step, result.step_s
                status.busy_since = now if unread else None
                self._look(engine, scheduler)
            elif plan is None:
                if spans is not None:
                    spans.enter("idle")
                self._rest(engine, scheduler)
                if spans is not None:
                    spans.enter("host")

    def _read(self, engine: Engine, spans: RankRecorder | None) -> StepResult:
        if spans is not None:
            spans.enter("compute")
        result = engine.read()
        # before the step's limit changes, which goes by what is unread
        self.status.busy_since = clock_now()
        if spans is not None:
            spans.enter("host")
        return result

    def _plan(
        self, engine: Engine, scheduler: Scheduler, now: float
    ) -> tuple[StepPlan | None, list[RowEvent], int]:
        """Return the next plan, the row events of the decisions, and the number of unread steps.
        Also pass the reports of the threads for KV files to the scheduler, and the scheduler's
        orders to these threads."""
        index, files = scheduler.disk, engine.disk if self._has_reports else None
        reports: list[DiskReport] = []
        if files is not None:
            self._has_reports = False
            reports = files.reports()
        with self._lock:
            if index is not None and reports:
                index.take(reports, now)
            events = scheduler.advance(now)
            plan, more = scheduler.plan(now)
            unread = scheduler.unread
            busy = index is not None and (index.open_orders or index.reads or index.seeks.open)
            orders = index.orders(now) if index is not None and busy else ()
            questions = index.seeks.take_questions() if index is not None and busy else ()
        if orders and (files := engine.disk) is not None:
            files.submit(orders)
        if questions:
            self._ask(engine, questions)
        return plan, [*events, *more], unread

    def _ask(self, engine: Engine, questions: Sequence[RunQuestion]) -> None:
        """Ask other nodes for prefixes."""
        for question in questions:
            key = None if engine.disk is None else engine.disk.keys.get(question.adapter)
            if self.seek is not None and key is not None:
                self.seek(question, key)

    def _look(self, engine: Engine, scheduler: Scheduler) -> None:
        """Pass this rank's memory measurement to the scheduler, if one is due. A measurement within
        the limit matters only after one above it."""
        look = self._watch.look(engine, self.status.steps_done)
        if look is not None and (look.is_over or scheduler.pressure.over):
            with self._lock:
                scheduler.pressure.take(0, look)

    def _rest(self, engine: Engine, scheduler: Scheduler) -> None:
        """Wait for work; the engine frees memory at the start of an idle time."""
        with self._lock:
            wake_at = scheduler.wake_at()
        wait_s = None if wake_at is None else max(wake_at - clock_now(), 0.0)
        if self._tidied_at != self.status.steps_done and (wait_s is None or wait_s > IDLE_S):
            if not self._hurries and self._wake.wait(IDLE_S):
                return
            self._hurries = False
            self._tidied_at = self.status.steps_done
            tidy()
            engine.rest()
            self.status.memory = engine.memory()
            return
        self._wake.wait(wait_s)
