"""Talks to the other ranks and to its engine thread: tests the collectives of a group.

A rank is lead or follower on the plan socket as in any group, with the same proofs, heartbeats and
deadlines, but no plan is sent. It is ready when the ranks have met. An exchange's error does not
say which rank failed. So the rank waits a moment before it leaves, because the lead, which gets the
heartbeats of all ranks, may name the lost rank. When the test is done, the rank waits to be
drained.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from bus.process.clock import now as clock_now
from bus.process.clock import wall
from bus.wire.messages.collectives import CollectiveReading, CollectiveTest, RankFinding
from runner import lifecycle
from runner.engine import EngineMemory, EngineStatus
from runner.group.collectives import Exchanges, Suite, SuiteProgress
from runner.group.lockstep import SharedPlan
from runner.roles.model_thread import Broken, Loaded, LoadFailed, ThreadNews
from runner.roles.role import Role, RoleParts, watchdog

ROUND_S = 60.0
"""Time limit in seconds of one exchange, including the check of its result."""
NAMED_S = lifecycle.RANK_LOST_S + 1.0
"""After a failed exchange, the rank waits this many seconds for the lead to name the lost rank."""
DRAINED_S = 30.0
"""A rank that has finished the test waits this many seconds for the worker to drain it, then ends
by itself."""


class SuiteLoop:
    """The `EngineLoop` of a test: meets the other ranks and runs the suite; cannot be interrupted.

    `done` is called from the thread with the finding. `status.steps_done` counts exchanges;
    `exchanges` is None until the ranks have met. Only the thread writes `progress`, `exchanges` and
    `status`; other threads read each once.
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
        """Meet the other ranks, which prove that they belong to the group. Exchanges are counted
        from this point on."""
        self.status.busy_since = clock_now()
        try:
            self.exchanges = self._meet()
        except Exception:
            self.status.busy_since = None
            raise

    def run(self) -> None:
        """Run every exchange of the test suite."""
        assert self.exchanges is not None, "the ranks have not met"
        try:
            finding = Suite(self._test, self.exchanges, time.perf_counter, self._report).run()
        finally:
            self.status.busy_since = None
        self._done(finding)

    def stop(self) -> None:
        """Do nothing: an exchange cannot be interrupted."""

    def _report(self, progress: SuiteProgress) -> None:
        self.progress = progress
        self.status.steps_done = progress.done
        self.status.busy_since = clock_now()
        self.status.memory = EngineMemory(0, 0, 0, progress.finding.peak_bytes)


class CollectiveTestRole(Role):
    """The role of one rank in a collective test."""

    def __init__(self, parts: RoleParts, test: CollectiveTest) -> None:
        reactor = parts.shell.reactor
        self._test = test
        self._met_at: float | None = None
        self._done_at: float | None = None
        self._broken: tuple[str, float] | None = None
        self._loop = SuiteLoop(
            test,
            lambda: parts.factories.open_exchanges(parts.spec, self._others.context),
            lambda finding: reactor.call(lambda: self._done(finding)),
        )
        super().__init__(parts, self._loop)
        self._exchanging = watchdog(parts.spec, lambda: self.status.busy_since)

    def watch(self, now: float) -> None:
        """End the runner if an exchange or the whole test takes too long, or if the test ended
        `DRAINED_S` ago."""
        super().watch(now)
        progress, test = self._loop.progress, self._test
        if self._broken is not None:
            message, at = self._broken
            if now - at > NAMED_S:
                self._leave(lifecycle.GROUP_LOST, message)
            return
        if self._done_at is not None:
            if now - self._done_at > DRAINED_S:
                self._host.leave(lifecycle.STOPPED, "model_unavailable", "the test is finished")
            return
        if self._exchanging.passed(now, lambda: ROUND_S) is not None:
            phase = progress.phase
            self._leave(
                lifecycle.WEDGED, f"no exchange of the {phase} test finished within {ROUND_S:g} s"
            )
        elif self._met_at is not None and now - self._met_at > test.deadline_s:
            done = f"{progress.done} of {progress.rounds} exchanges"
            self._leave(
                lifecycle.WEDGED,
                f"the test took more than {test.deadline_s:g} s ({done} finished)",
            )

    def reading(self, now: float) -> CollectiveReading | None:
        """Return the progress and the findings of the test so far."""
        progress, exchanges = self._loop.progress, self._loop.exchanges
        return CollectiveReading(
            node=self._speaker.node,
            process=self._speaker.process,
            instance=self._spec.instance,
            rank=self._spec.rank,
            size=self._spec.size,
            backend=self._others.context.backend,
            test=self._test,
            phase=progress.phase,
            done=progress.done,
            rounds=progress.rounds,
            finding=progress.finding,
            pid=os.getpid(),
            mlx_version="" if exchanges is None else exchanges.mlx_version,
            device="" if exchanges is None else exchanges.device,
        )

    # --- from the other ranks --------------------------------------------------------------

    def plan(self, shared: SharedPlan) -> None:
        """End the runner, because the lead of a collective test must not send a plan."""
        self._leave(lifecycle.ENGINE_ERROR, f"the lead sent step {shared.plan.step} during a test")

    def lost(self, what: str, is_final: bool) -> None:
        """End the runner, because another rank is lost; a new attempt may succeed."""
        if self._spec.rank:
            what = f"rank 0 on node {self._others.group.ranks[0].node}: {what}"
        self._leave(lifecycle.GROUP_LOST, what)

    def ended(self, why: str) -> None:
        """End the runner, because the lead has ended: normally if this rank has finished the test,
        otherwise as a lost group."""
        code = lifecycle.GROUP_LOST if self._done_at is None else lifecycle.STOPPED
        self._host.leave(code, "model_unavailable", f"the lead stopped: {why}")

    def _leave(self, code: int, what: str) -> None:
        self._log.error("the test failed", why=what)
        self._host.leave(code, "runner_lost", what)

    # --- from the engine's thread ----------------------------------------------------------

    def _take_news(self, news: ThreadNews) -> None:
        match news:
            case Loaded():
                self._met_at = self._reactor.now()
                super()._take_news(news)
            case LoadFailed(message, story) | Broken(_, message, story):
                self._recorder.note(wall(), "error", message=message)
                self._log.error("an exchange failed", error=story)
                if lifecycle.lost_peer(message):
                    self._broken = (message, self._reactor.now())
                else:
                    self._leave(lifecycle.ENGINE_ERROR, message)

    def _done(self, finding: RankFinding) -> None:
        self._done_at = self._reactor.now()
        self._recorder.note(wall(), "completion", checks=len(finding.checks))
        self._log.info("the test is finished", rank=self._spec.rank)
