"""Talks to the engine thread of a follower: plans in, in the order in which the lead sent them.

One thread loads this rank's part and makes every call of its engine, for life. It waits for the
next plan on a queue, never in an exchange between ranks, so that an idle group costs nothing.
A plan that does not follow from what this rank has computed ends the thread, as does an
exception of the engine: nothing is retried.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue

from bus.process.clock import now as clock_now
from runner.engine import EngineMemory, FollowingEngine, LoadProgress
from runner.group.lockstep import Lockstep, SharedPlan
from runner.schedule.scheduler import STEPS_AHEAD
from runner.serving.engine_thread import IDLE_S, MEMORY_EVERY_S, Broken, Loaded, LoadFailed

NEXT_PLAN_S = 0.01
"""With one step unread, the lead's next plan is waited for so long before that step is."""


FollowerNews = Loaded | LoadFailed | Broken


class FollowerThread:
    """Start it once; `post` is called from it and must not wait."""

    def __init__(
        self,
        load: Callable[[Callable[[LoadProgress], None]], FollowingEngine],
        post: Callable[[FollowerNews], None],
    ) -> None:
        self._load_engine = load
        self._post = post
        self._plans: SimpleQueue[SharedPlan | None] = SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._unread = 0
        self.progress = LoadProgress("reading", 0, 0)
        self.memory = EngineMemory(0, 0, 0, 0)
        self.steps_done = 0
        self.busy_since: float | None = None
        """Since when the engine has owed its next result; None while it owes none."""

    def start(self) -> None:
        self._thread.start()

    def give(self, shared: SharedPlan) -> None:
        """The lead's next plan."""
        self._plans.put(shared)

    def stop(self, timeout_s: float) -> bool:
        """Have the loop end after its step; False when it did not within `timeout_s`."""
        self._stopping = True
        self._plans.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            engine = self._load_engine(self._progressed)
        except Exception as error:
            traceback.print_exc()
            self._post(LoadFailed(str(error) or type(error).__name__))
            return
        self.memory = engine.memory()
        self._post(Loaded(engine.facts))
        try:
            self._serve(engine)
            engine.close()
        except Exception as error:
            self._post(Broken(f"{type(error).__name__}: {error}", traceback.format_exc()))

    def _progressed(self, progress: LoadProgress) -> None:
        self.progress = progress

    def _serve(self, engine: FollowingEngine) -> None:
        lockstep = Lockstep(engine.hears)
        measured_at = 0.0
        while not self._stopping:
            shared = self._next(engine)
            if self._stopping:
                return
            if shared is None:
                self._read(engine, lockstep)
                continue
            while lockstep.read < shared.covers and self._unread:
                self._read(engine, lockstep)
            lockstep.take(shared)
            if self.busy_since is None:
                self.busy_since = clock_now()
            engine.follow(shared.plan, shared.barred)
            self._unread += 1
            while self._unread > STEPS_AHEAD:
                self._read(engine, lockstep)
            if clock_now() - measured_at >= MEMORY_EVERY_S:
                self.memory, measured_at = engine.memory(), clock_now()

    def _next(self, engine: FollowingEngine) -> SharedPlan | None:
        """The next plan; None where there is none yet and a step is left to read."""
        try:
            if self._unread == STEPS_AHEAD:
                return self._plans.get_nowait()
            return self._plans.get(timeout=NEXT_PLAN_S if self._unread else IDLE_S)
        except Empty:
            if self._unread:
                return None
        engine.rest()
        self.memory = engine.memory()
        return self._plans.get()

    def _read(self, engine: FollowingEngine, lockstep: Lockstep) -> None:
        result = engine.read()
        lockstep.made(result.step, result.tokens)
        self._unread -= 1
        self.steps_done = result.step
        self.busy_since = clock_now() if self._unread else None
