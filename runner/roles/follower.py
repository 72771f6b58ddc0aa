"""Talks to its lead and to its engine thread: computes the lead's plans in their order.

This is the role of every rank but 0. A follower serves no gateway and decides nothing. It is ready
when the ranks have agreed on their common facts. It leaves when the lead leaves or is silent, and
when its own engine fails. The lead enforces the time limit of steps, because it notices first.
Asked to drain, the follower waits for the lead, which ends after its requests.

The loop waits for the next plan on a queue, never in an exchange between ranks, so an idle group
costs nothing. A plan that does not match what this rank has computed ends the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue

from bus.process.clock import now as clock_now
from bus.process.clock import wall
from bus.process.memory import keep
from bus.wire.ids import RequestId
from bus.wire.messages.readings import RunnerReading
from runner.engine import EngineFacts, EngineStatus, FollowingEngine, LoadProgress, MemoryLook
from runner.group.lockstep import Lockstep, SharedPlan
from runner.group.rank_recorder import RankRecorder
from runner.lead import IDLE_S, MEMORY_EVERY_S, MemoryWatch
from runner.lifecycle import FIRST_STEP_DEADLINE_S, lost_peer
from runner.recorder import ServedTotals
from runner.roles.model_thread import LoadFailed, ThreadNews
from runner.roles.reports import RunnerMeter
from runner.roles.role import Role, RoleParts, note_steps, watchdog
from runner.schedule import STEPS_AHEAD

NEXT_PLAN_S = 0.01
"""While one step is unread, the loop waits this many seconds for the next plan before it reads that
step."""
READ_WITHIN_S = 0.5
LOOKS_AGAIN_S = 0.01
"""Interval at which a follower checks whether it has read the last step of a request, because it
reads that step slightly after the lead."""


class FollowerRole(Role):
    """The role of every rank except rank 0: it computes what the lead plans."""

    def __init__(self, parts: RoleParts) -> None:
        self._loop = FollowerLoop(
            lambda progress: parts.factories.load_follower(
                parts.spec, self._others.context, progress
            ),
            MemoryWatch(parts.spec.memory_limit_bytes),
            lambda look: parts.shell.reactor.call(lambda: self._others.tell_memory(look)),
        )
        super().__init__(parts, self._loop)
        self._loop.spans = self._others.context.spans
        self._others.on_ask = self._trace
        self._stepping = watchdog(parts.spec, lambda: self.status.busy_since)
        now, speaker = parts.shell.reactor.now(), parts.shell.speaker
        self._meter = RunnerMeter(parts.spec, speaker, ServedTotals(used_at=now), now)

    @property
    def is_empty(self) -> bool:
        """Return False: a draining follower does not end by itself. It ends when its lead ends or
        is silent, or at the deadline."""
        return False

    def begin(self) -> None:
        """Record that this rank waits for the lead, which tells all ranks to form the group."""
        lead = self._others.group.ranks[0]
        self._recorder.note(wall(), "connect_group", lead=lead.node)

    def watch(self, now: float) -> None:
        """End the runner if one step took longer than any step may."""
        super().watch(now)
        note_steps(self._recorder, self.status, self._channel)
        if self._stepping.passed(now, lambda: FIRST_STEP_DEADLINE_S) is not None:
            step = self.status.steps_done + 1
            self._stuck(f"step {step} took more than {FIRST_STEP_DEADLINE_S:.0f} s")

    def reading(self, now: float) -> RunnerReading:
        """Return the current reading of this rank: its progress and its memory."""
        return self._meter.reading(self._host.phase, self.status, None, 0, now)

    def plan(self, shared: SharedPlan) -> None:
        """Pass the lead's next plan to the engine's thread."""
        self._loop.give(shared)

    def _trace(self, request_id: RequestId, step: int) -> None:
        """Send the lead's gateway this rank's spans of a traced request, when the result of `step`
        is read or soon after."""
        self._tell_spans(request_id, step, self._reactor.now() + READ_WITHIN_S)

    def _tell_spans(self, request_id: RequestId, step: int, until: float) -> None:
        if self.status.steps_done < step and self._reactor.now() < until:
            self._reactor.later(LOOKS_AGAIN_S, lambda: self._tell_spans(request_id, step, until))
            return
        self._others.tell_spans(request_id)

    def _take_news(self, news: ThreadNews) -> None:
        if isinstance(news, LoadFailed):
            self._others.end(news.message, is_final=not lost_peer(news.message))
        super()._take_news(news)

    def _loaded(self) -> None:
        facts = self._loop.facts
        if facts is not None:
            self.described = self._meter.loaded(facts)
            self._note_kv(self._meter.kv)
        keep()
        self._recorder.note(wall(), "idle")
        super()._loaded()


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
        assert self._engine is not None, "the engine is not loaded"
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
            if shared.plan.prefill:
                self._watch.reads_prompt = True
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
