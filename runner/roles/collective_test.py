"""Talks to the other ranks and to its engine thread: a runner that tests its group's collectives.

It plays lead or follower on the plan socket as in any group (same proof, same beats, same
deadlines), but no plan is ever sent. It is ready once the ranks have met. An error of an exchange
does not say whose fault it was: the lead, who hears every rank's beats, has a moment to name
the one that is gone before the rank leaves. When it is done it waits to be drained.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.links.reactor import PollReactor
from bus.links.security import Security
from bus.process.clock import wall
from bus.process.logs import Log
from bus.wire.errors import FailReason
from bus.wire.messages.collectives import CollectiveReading, CollectiveTest
from bus.wire.messages.control import Phase, RunnerSpec
from runner.engine import EngineFacts
from runner.group.collectives import Exchanges
from runner.group.group_config import CannotForm
from runner.group.lockstep import SharedPlan
from runner.group.plan_channel import FollowerChannel, LeadChannel
from runner.lifecycle import (
    ENGINE_ERROR,
    GROUP_LOST,
    RANK_LOST_S,
    STOPPED,
    WEDGED,
    lost_peer,
)
from runner.recorder import FlightRecorder
from runner.roles.collectives_thread import (
    CollectivesNews,
    CollectivesThread,
    RanksMet,
    SuiteDone,
    SuiteFailed,
)
from runner.roles.reports import SlotIdentity
from runner.roles.role import Factories, RoleHost

ROUND_S = 60.0
"""What one exchange, or looking at its result, may take."""
NAMED_S = RANK_LOST_S + 1.0
"""How long a broken exchange waits for the lead to say which rank is gone."""
DRAINED_S = 30.0
"""How long a rank that is done waits to be drained before it leaves by itself."""


class CollectiveTestRole:
    """See the module's law, and `runner.roles.role.Role`."""

    def __init__(
        self,
        spec: RunnerSpec,
        test: CollectiveTest,
        host: RoleHost,
        *,
        identity: Callable[[], SlotIdentity],
        factories: Factories,
        security: Security | None,
        reactor: PollReactor,
        log: Log,
        recorder: FlightRecorder,
    ) -> None:
        self.facts: EngineFacts | None = None
        self.addresses: tuple[str, ...] = ()
        self.open_requests = 0
        self.is_empty = True
        self._spec = spec
        self._test = test
        self._host = host
        self._identity = identity
        self._factories = factories
        self._reactor = reactor
        self._log = log
        self._recorder = recorder
        self._exchanges: Exchanges | None = None
        self._met_at: float | None = None
        self._done_at: float | None = None
        self._broken: tuple[str, float] | None = None
        self._channel = self._lead(security) if spec.rank == 0 else self._follower(security)
        self.works = self._thread = CollectivesThread(
            test,
            lambda: factories.open_exchanges(spec, self._channel.context),
            lambda news: reactor.call(lambda: self._heard(news)),
        )

    def begin(self) -> None:
        self._recorder.note(wall(), "connect_group", ranks=self._spec.size)

    def entered(self, phase: Phase) -> None:
        return

    def watch(self, now: float) -> None:
        thread, test = self._thread, self._test
        self._channel.step = thread.steps_done
        if self._broken is not None:
            message, at = self._broken
            if now - at > NAMED_S:
                self._leave(GROUP_LOST, message)
            return
        if self._done_at is not None:
            if now - self._done_at > DRAINED_S:
                self._host.leave(STOPPED, "model_unavailable", "the test is done")
            return
        moved_at = thread.moved_at
        if moved_at is not None and now - moved_at > ROUND_S:
            phase = thread.standing.phase
            self._leave(WEDGED, f"no exchange of the {phase} test has ended for {ROUND_S:g} s")
        elif self._met_at is not None and now - self._met_at > test.deadline_s:
            done = f"{thread.standing.done} of {thread.standing.rounds} exchanges"
            self._leave(WEDGED, f"the test took more than {test.deadline_s:g} s ({done} were done)")

    def reading(self, now: float) -> CollectiveReading | None:
        me, standing, exchanges = self._identity(), self._thread.standing, self._exchanges
        group = self._channel.group
        return CollectiveReading(
            node=me.node,
            process=me.process,
            instance=self._spec.instance,
            rank=self._spec.rank,
            size=self._spec.size,
            backend=group.backend,
            test=self._test,
            phase=standing.phase,
            done=standing.done,
            rounds=standing.rounds,
            finding=standing.finding,
            pid=me.pid,
            mlx_version="" if exchanges is None else exchanges.mlx_version,
            device="" if exchanges is None else exchanges.device,
        )

    def fail_all(self, reason: FailReason, message: str) -> None:
        self._channel.end(message)

    def say_goodbye(self, message: str) -> None:
        return

    def stop(self, timeout_s: float) -> None:
        self._thread.stop(timeout_s)
        self._channel.close()

    # --- the group -------------------------------------------------------------------------

    def _lead(self, security: Security | None) -> LeadChannel:
        return LeadChannel(
            self._spec,
            self._reactor,
            self._log,
            security=security,
            on_formed=self._form,
            on_lost=lambda what, is_final: self._leave(GROUP_LOST, what),
        )

    def _follower(self, security: Security | None) -> FollowerChannel:
        return FollowerChannel(
            self._spec,
            self._reactor,
            self._log,
            security=security,
            on_form=self._form,
            on_plan=self._planned,
            on_lost=self._lost_the_lead,
            on_end=self._ended,
        )

    def _form(self) -> None:
        group = self._channel.group
        try:
            self._factories.form_group(group, self._spec.rank, group.form_deadline_s)
        except CannotForm as error:
            self._leave(GROUP_LOST, str(error))
            return
        self._channel.formed()
        self._thread.start()

    def _planned(self, shared: SharedPlan) -> None:
        self._leave(ENGINE_ERROR, f"the lead sent step {shared.plan.step} in a test")

    def _lost_the_lead(self, what: str) -> None:
        lead = self._channel.group.ranks[0]
        self._leave(GROUP_LOST, f"rank 0 on node {lead.node}: {what}")

    def _ended(self, why: str) -> None:
        code = GROUP_LOST if self._done_at is None else STOPPED
        self._host.leave(code, "model_unavailable", f"the lead has left: {why}")

    def _leave(self, code: int, what: str) -> None:
        self._log.error("the test is over", why=what)
        self._host.leave(code, "runner_lost", what)

    def _heard(self, news: CollectivesNews) -> None:
        match news:
            case RanksMet(exchanges):
                self._exchanges = exchanges
                self._met_at = self._reactor.now()
                if self._host.phase == "loading":
                    self._channel.ready = True
                    self._host.signal("loaded")
                    self._host.signal("warmed")
                    self._log.info("ready", rank=self._spec.rank)
            case SuiteDone(finding):
                self._done_at = self._reactor.now()
                self._recorder.note(wall(), "completion", checks=len(finding.checks))
                self._log.info("the test is done", rank=self._spec.rank)
            case SuiteFailed(message, story):
                self._recorder.note(wall(), "error", message=message)
                self._log.error("an exchange failed", error=story)
                if lost_peer(message):
                    self._broken = (message, self._reactor.now())
                else:
                    self._leave(ENGINE_ERROR, message)
