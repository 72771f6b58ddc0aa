"""Talks to the other ranks and to its engine thread: a runner that tests its group's collectives.

It plays lead or follower on the plan socket as in any group (same proof, same beats, same
deadlines), but no plan is ever sent. It is ready once the ranks have met. An error of an exchange
does not say whose fault it was: the lead, who hears every rank's beats, has a moment to name
the one that is gone before the rank leaves. When it is done it waits to be drained.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bus.process.clock import now as clock_now
from bus.process.clock import wall
from bus.service import Shell
from bus.wire.errors import FailReason
from bus.wire.messages.collectives import CollectiveReading, CollectiveTest, RankFinding
from bus.wire.messages.control import Phase, RunnerSpec
from runner.engine import EngineFacts, EngineMemory, EngineStatus
from runner.group.collectives import Exchanges, Suite, SuiteProgress
from runner.group.lockstep import SharedPlan
from runner.lifecycle import (
    ENGINE_ERROR,
    GROUP_LOST,
    RANK_LOST_S,
    STOPPED,
    WEDGED,
    lost_peer,
)
from runner.recorder import FlightRecorder
from runner.roles.model_thread import Broken, Loaded, LoadFailed, ThreadNews
from runner.roles.rank_shell import RankShell
from runner.roles.role import Factories, RoleHost

ROUND_S = 60.0
"""What one exchange, or looking at its result, may take."""
NAMED_S = RANK_LOST_S + 1.0
"""How long a broken exchange waits for the lead to say which rank is gone."""
DRAINED_S = 30.0
"""How long a rank that is done waits to be drained before it leaves by itself."""


class SuiteLoop:
    """The `EngineLoop` of a test: meet the other ranks, run the suite; it cannot be interrupted.

    `done` is called from the thread with the finding, when all was done. `status.steps_done`
    counts exchanges; `exchanges` is None until the ranks have met.
    """

    def __init__(
        self,
        test: CollectiveTest,
        meet: Callable[[], Exchanges],
        done: Callable[[RankFinding], None],
    ) -> None:
        self._test = test
        self._meet = meet
        self._done = done
        self.exchanges: Exchanges | None = None
        self.progress = SuiteProgress("forming", 0, 0, RankFinding())
        self.status = EngineStatus()

    def load(self) -> None:
        """Meet the other ranks, who prove themselves. Exchanges count from here on."""
        self.status.busy_since = clock_now()
        try:
            self.exchanges = self._meet()
        except Exception:
            self.status.busy_since = None
            raise

    def run(self) -> None:
        """Make every exchange of the suite."""
        assert self.exchanges is not None, "met"
        try:
            finding = Suite(self._test, self.exchanges, time.perf_counter, self._told).run()
        finally:
            self.status.busy_since = None
        self._done(finding)

    def stop(self) -> None:
        """Do nothing: an exchange cannot be interrupted."""

    def _told(self, progress: SuiteProgress) -> None:
        self.progress = progress
        self.status.steps_done = progress.done
        self.status.busy_since = clock_now()
        self.status.memory = EngineMemory(0, 0, 0, progress.finding.peak_bytes)


class CollectiveTestRole:
    """The `runner.roles.role.Role` of a rank of a test, and its channel's `PlanListener`."""

    def __init__(
        self,
        spec: RunnerSpec,
        test: CollectiveTest,
        host: RoleHost,
        *,
        shell: Shell,
        factories: Factories,
        recorder: FlightRecorder,
    ) -> None:
        self.facts: EngineFacts | None = None
        self.addresses: tuple[str, ...] = ()
        self.open_requests = 0
        self.is_empty = True
        self._spec = spec
        self._test = test
        self._host = host
        self._factories = factories
        self._reactor = shell.reactor
        self._log = shell.log
        self._recorder = recorder
        self._met_at: float | None = None
        self._done_at: float | None = None
        self._broken: tuple[str, float] | None = None
        self._loop = SuiteLoop(
            test,
            lambda: factories.open_exchanges(spec, self._rank.grouped),
            lambda finding: shell.reactor.call(lambda: self._done(finding)),
        )
        self._rank = RankShell(
            spec, host, shell, recorder, loop=self._loop, listener=self, heard=self._heard
        )

    @property
    def status(self) -> EngineStatus:
        """Return how many exchanges were made, and the memory that they took."""
        return self._loop.status

    def begin(self) -> None:
        """Wait until all ranks are here."""
        self._recorder.note(wall(), "connect_group", ranks=self._spec.size)

    def entered(self, phase: Phase) -> None:
        """Do nothing: no phase changes what a test does."""

    def watch(self, now: float) -> None:
        """Leave where an exchange or the whole test takes too long, and some time after its end."""
        status, progress, test = self._loop.status, self._loop.progress, self._test
        self._rank.stepped(status.steps_done)
        if self._broken is not None:
            message, at = self._broken
            if now - at > NAMED_S:
                self._leave(GROUP_LOST, message)
            return
        if self._done_at is not None:
            if now - self._done_at > DRAINED_S:
                self._host.leave(STOPPED, "model_unavailable", "the test is done")
            return
        busy_since = status.busy_since
        if busy_since is not None and now - busy_since > ROUND_S:
            phase = progress.phase
            self._leave(WEDGED, f"no exchange of the {phase} test has ended for {ROUND_S:g} s")
        elif self._met_at is not None and now - self._met_at > test.deadline_s:
            done = f"{progress.done} of {progress.rounds} exchanges"
            self._leave(WEDGED, f"the test took more than {test.deadline_s:g} s ({done} were done)")

    def reading(self, now: float) -> CollectiveReading | None:
        """Return how far this rank is, and what it has found so far."""
        identity, progress = self._host.identity(), self._loop.progress
        exchanges = self._loop.exchanges
        return CollectiveReading(
            node=identity.node,
            process=identity.process,
            instance=self._spec.instance,
            rank=self._spec.rank,
            size=self._spec.size,
            backend=self._rank.grouped.backend,
            test=self._test,
            phase=progress.phase,
            done=progress.done,
            rounds=progress.rounds,
            finding=progress.finding,
            pid=identity.pid,
            mlx_version="" if exchanges is None else exchanges.mlx_version,
            device="" if exchanges is None else exchanges.device,
        )

    def fail_all(self, reason: FailReason, message: str) -> None:
        """Tell the other ranks that this one leaves."""
        self._rank.end(message)

    def say_goodbye(self, message: str) -> None:
        """Do nothing: no gateway knows a test."""

    def stop(self, timeout_s: float) -> None:
        """Wait a moment for the suite's end, then drop the channel."""
        self._rank.stop(timeout_s)

    # --- from the other ranks --------------------------------------------------------------

    def form(self) -> None:
        """Join the ring and meet."""
        if self._rank.form(self._factories):
            self._rank.start()

    def plan(self, shared: SharedPlan) -> None:
        """Leave: nothing is computed in a test."""
        self._leave(ENGINE_ERROR, f"the lead sent step {shared.plan.step} in a test")

    def lost(self, what: str, is_final: bool) -> None:
        """Leave: another rank is gone; a new generation may do better."""
        if self._spec.rank:
            what = f"rank 0 on node {self._lead_node}: {what}"
        self._leave(GROUP_LOST, what)

    def ended(self, why: str) -> None:
        """Leave: in good order where this rank is done."""
        code = GROUP_LOST if self._done_at is None else STOPPED
        self._host.leave(code, "model_unavailable", f"the lead has left: {why}")

    @property
    def _lead_node(self) -> str:
        group = self._spec.group
        return "" if group is None else group.ranks[0].node

    def _leave(self, code: int, what: str) -> None:
        self._log.error("the test is over", why=what)
        self._host.leave(code, "runner_lost", what)

    # --- from the engine's thread ----------------------------------------------------------

    def _heard(self, news: ThreadNews) -> None:
        match news:
            case Loaded():
                self._met_at = self._reactor.now()
                if self._host.phase == "loading":
                    self._rank.ready()
                    self._host.signal("loaded")
                    self._host.signal("warmed")
                    self._log.info("ready", rank=self._spec.rank)
            case LoadFailed(message, story) | Broken(_, message, story):
                self._recorder.note(wall(), "error", message=message)
                self._log.error("an exchange failed", error=story)
                if lost_peer(message):
                    self._broken = (message, self._reactor.now())
                else:
                    self._leave(ENGINE_ERROR, message)

    def _done(self, finding: RankFinding) -> None:
        self._done_at = self._reactor.now()
        self._recorder.note(wall(), "completion", checks=len(finding.checks))
        self._log.info("the test is done", rank=self._spec.rank)
