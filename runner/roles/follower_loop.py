"""Talks to the engine of a follower: runs plans in the order in which the lead sent them.

The loop waits for the next plan on a queue, never in an exchange between ranks, so an idle group
costs nothing. A plan that does not match what this rank has computed ends the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue

from bus.process.clock import now as clock_now
from runner.engine import EngineFacts, EngineStatus, FollowingEngine, LoadProgress, MemoryLook
from runner.group.lockstep import Lockstep, SharedPlan
from runner.group.rank_recorder import RankRecorder
from runner.lead import IDLE_S, MEMORY_EVERY_S, MemoryWatch
from runner.schedule import STEPS_AHEAD

NEXT_PLAN_S = 0.01
"""While one step is unread, the loop waits this many seconds for the next plan before it reads that
step."""


class FollowerLoop:
    """The `EngineLoop` of every rank but 0. `facts` is None until the engine is loaded. `watch`
    reports a lack of memory; `tell` sends it to the lead, from the thread. `spans` records work for
    traced requests; set before the first plan."""

    def __init__(
        self,
        load: Callable[[Callable[[LoadProgress], None]], FollowingEngine],
        watch: MemoryWatch,
        tell: Callable[[MemoryLook], None],
    ) -> None:
        self._load_engine = load
        self._watch = watch
        self._tell = tell
        self._was_over = False
        self._engine: FollowingEngine | None = None
        self._plans: SimpleQueue[SharedPlan | None] = SimpleQueue()
        self._stopping = False
        self._unread = 0
        self.facts: EngineFacts | None = None
        self.status = EngineStatus()
        self.spans: RankRecorder

    def give(self, shared: SharedPlan) -> None:
        """Queue the lead's next plan. Called from the main thread."""
        self.spans.came(shared.plan)
        self._plans.put(shared)

    def stop(self) -> None:
        """Make `run` return after the current step."""
        self._stopping = True
        self._plans.put(None)

    def load(self) -> None:
        """Load the layers of this rank."""
        engine = self._engine = self._load_engine(self._progressed)
        self.facts = engine.facts
        self.status.memory = engine.memory()

    def run(self) -> None:
        """Compute the lead's plans until `stop` is called, then close the engine. Raises OutOfStep
        if a plan does not match what this rank has computed."""
        assert self._engine is not None, "loaded"
        self._follow(self._engine)
        self._engine.close()

    def _progressed(self, progress: LoadProgress) -> None:
        self.status.progress = progress

    def _follow(self, engine: FollowingEngine) -> None:
        status, spans, lockstep = self.status, self.spans, Lockstep(engine.hears)
        measured_at = 0.0
        while not self._stopping:
            spans.enter("idle")
            shared = self._next(engine)
            spans.enter("host")
            if self._stopping:
                return
            if shared is None:
                self._read(engine, lockstep)
                continue
            while lockstep.read < shared.covers and self._unread:
                self._read(engine, lockstep)
            lockstep.take(shared)
            status.steps_begun = shared.plan.step
            spans.begin(shared.plan)
            if status.busy_since is None:
                status.busy_since = clock_now()
            engine.follow(shared.plan, shared.barred)
            self._watch.issued(shared.plan)
            self._unread += 1
            while self._unread > STEPS_AHEAD:
                self._read(engine, lockstep)
            if clock_now() - measured_at >= MEMORY_EVERY_S:
                status.memory, measured_at = engine.memory(), clock_now()

    def _next(self, engine: FollowingEngine) -> SharedPlan | None:
        """Return the next plan. Return None if no plan has come within `NEXT_PLAN_S` and a step is
        unread."""
        try:
            if self._unread == STEPS_AHEAD:
                return self._plans.get_nowait()
            return self._plans.get(timeout=NEXT_PLAN_S if self._unread else IDLE_S)
        except Empty:
            if self._unread:
                return None
        engine.rest()
        self.status.memory = engine.memory()
        return self._plans.get()

    def _read(self, engine: FollowingEngine, lockstep: Lockstep) -> None:
        self.spans.enter("compute")
        result = engine.read()
        self.spans.enter("host")
        lockstep.add_tokens(result.step, result.tokens)
        self._unread -= 1
        self.status.busy_since = clock_now() if self._unread else None
        self.status.steps_done = result.step
        look = self._watch.look(engine, result.step)
        if look is not None and (look.is_over or self._was_over):
            self._was_over = look.is_over
            self._tell(look)
