"""Talks to its lead and to its engine thread: a runner that computes what it is told.

Every rank but 0. It serves no gateway and decides nothing; it is ready once the ranks have agreed.
It leaves when the lead does, when the lead is silent, and when its own engine is lost; what a step
may take the lead knows, and sees first. Asked to drain, it waits for the lead, which ends when its
requests have.
"""

from __future__ import annotations

from bus.process.clock import wall
from bus.process.memory import keep
from bus.service import Shell
from bus.wire.errors import FailReason
from bus.wire.messages.control import Phase, RunnerSpec
from bus.wire.messages.readings import RunnerReading
from runner.engine import EngineFacts, EngineStatus
from runner.group.lockstep import SharedPlan
from runner.lifecycle import FIRST_STEP_DEADLINE_S, STOPPED, lost_peer
from runner.recorder import FlightRecorder
from runner.roles.follower_loop import FollowerLoop
from runner.roles.model_thread import Broken, Loaded, LoadFailed, ThreadNews
from runner.roles.rank_shell import RankShell
from runner.roles.role import Factories, RoleHost


class FollowerRole:
    """The `runner.roles.role.Role` of every rank but 0, and its channel's `PlanListener`."""

    def __init__(
        self,
        spec: RunnerSpec,
        host: RoleHost,
        *,
        shell: Shell,
        factories: Factories,
        recorder: FlightRecorder,
    ) -> None:
        self.facts: EngineFacts | None = None
        self.addresses: tuple[str, ...] = ()
        self.open_requests = 0
        self.is_empty = False
        self._spec = spec
        self._host = host
        self._factories = factories
        self._log = shell.log
        self._recorder = recorder
        self._loop = FollowerLoop(
            lambda progress: factories.load_follower(spec, self._rank.grouped, progress)
        )
        self._rank = RankShell(
            spec, host, shell, recorder, loop=self._loop, listener=self, heard=self._heard
        )

    @property
    def status(self) -> EngineStatus:
        """Return where this rank's engine stands."""
        return self._loop.status

    def begin(self) -> None:
        """Wait for the lead, who has all ranks form."""
        group = self._spec.group
        assert group is not None, "checked by the channel"
        self._recorder.note(wall(), "connect_group", lead=group.ranks[0].node)

    def entered(self, phase: Phase) -> None:
        """Do nothing: no phase changes what a follower does."""

    def watch(self, now: float) -> None:
        """Leave where a step has taken longer than any may."""
        status = self._loop.status
        self._rank.stepped(status.steps_done)
        busy_since = status.busy_since
        if busy_since is not None and now - busy_since > FIRST_STEP_DEADLINE_S:
            step = status.steps_done + 1
            self._rank.stuck(f"step {step} took more than {FIRST_STEP_DEADLINE_S:.0f} s")

    def reading(self, now: float) -> RunnerReading | None:
        """Return None: the lead tells for all ranks."""
        return None

    def fail_all(self, reason: FailReason, message: str) -> None:
        """Tell the lead that this rank leaves."""
        self._rank.end(message)

    def say_goodbye(self, message: str) -> None:
        """Do nothing: no gateway knows a follower."""

    def stop(self, timeout_s: float) -> None:
        """Give the engine a moment to end its step, then drop the link to the lead."""
        self._rank.stop(timeout_s)

    # --- from the lead ---------------------------------------------------------------------

    def form(self) -> None:
        """Join the ring and load."""
        if self._rank.form(self._factories):
            self._rank.start()

    def plan(self, shared: SharedPlan) -> None:
        """Hand the next plan to the engine's thread."""
        self._loop.give(shared)

    def lost(self, what: str, is_final: bool) -> None:
        """Leave: the lead is silent or was not understood."""
        self._rank.lost(what, is_final)

    def ended(self, why: str) -> None:
        """Leave in good order, as the lead has."""
        self._host.leave(STOPPED, "model_unavailable", f"the lead has left: {why}")

    # --- from the engine's thread ----------------------------------------------------------

    def _heard(self, news: ThreadNews) -> None:
        match news:
            case Loaded():
                self._loaded()
            case LoadFailed():
                self._rank.end(news.message, is_final=not lost_peer(news.message))
                self._rank.load_failed(news)
            case Broken():
                self._rank.broken(news)

    def _loaded(self) -> None:
        if self._host.phase != "loading":
            return
        self.facts = self._loop.facts
        self._rank.ready()
        keep()
        self._host.signal("loaded")
        self._host.signal("warmed")
        self._log.info("ready", rank=self._spec.rank)
