"""Talks to its lead and to its engine thread: a runner that computes what it is told.

Every rank but 0. It serves nobody and decides nothing; it is ready once the ranks have agreed.
It leaves when the lead does, when the lead is silent, and when its own engine is lost; what a step
may take the lead knows, and sees first. Asked to drain, it waits for the lead, which ends when its
requests have.
"""

from __future__ import annotations

from bus.links.reactor import PollReactor
from bus.links.security import Security
from bus.process.clock import wall
from bus.process.logs import Log
from bus.process.memory import keep
from bus.wire.errors import FailReason
from bus.wire.messages.control import Phase, RunnerSpec
from bus.wire.messages.readings import RunnerReading
from runner.engine import EngineFacts, FollowingEngine
from runner.group.group_config import CannotForm
from runner.group.plan_channel import FollowerChannel
from runner.lifecycle import (
    ENGINE_ERROR,
    FIRST_STEP_DEADLINE_S,
    GROUP_LOST,
    LOAD_FAILED,
    STOPPED,
    WEDGED,
    lost_peer,
)
from runner.recorder import FlightRecorder
from runner.roles.follower_thread import FollowerNews, FollowerThread
from runner.roles.role import Factories, Progressed, RoleHost
from runner.serving.engine_thread import Broken, Loaded, LoadFailed


class FollowerRole:
    """See the module's law, and `runner.roles.role.Role`."""

    def __init__(
        self,
        spec: RunnerSpec,
        host: RoleHost,
        *,
        factories: Factories,
        security: Security | None,
        reactor: PollReactor,
        log: Log,
        recorder: FlightRecorder,
    ) -> None:
        self.facts: EngineFacts | None = None
        self.addresses: tuple[str, ...] = ()
        self.open_requests = 0
        self.is_empty = False
        self._spec = spec
        self._host = host
        self._factories = factories
        self._log = log
        self._recorder = recorder
        self.works = self._engine = FollowerThread(
            self._load,
            lambda news: reactor.call(lambda: self._heard(news)),
        )
        self._channel = FollowerChannel(
            spec,
            reactor,
            log,
            security=security,
            on_form=self._form,
            on_plan=self._engine.give,
            on_lost=self._lost,
            on_end=self._ended,
        )

    def begin(self) -> None:
        self._recorder.note(wall(), "connect_group", lead=self._channel.lead.node)

    def entered(self, phase: Phase) -> None:
        return

    def watch(self, now: float) -> None:
        engine = self._engine
        self._channel.step = engine.steps_done
        busy_since = engine.busy_since
        if busy_since is None:
            return
        if now - busy_since > FIRST_STEP_DEADLINE_S:
            what = f"step {engine.steps_done + 1} took more than {FIRST_STEP_DEADLINE_S:.0f} s"
            self._log.critical("the engine is stuck", what=what)
            self._host.leave(WEDGED, "runner_lost", what)

    def reading(self, now: float) -> RunnerReading | None:
        return None

    def fail_all(self, reason: FailReason, message: str) -> None:
        self._channel.end(message)

    def say_goodbye(self, message: str) -> None:
        return

    def stop(self, timeout_s: float) -> None:
        self._engine.stop(timeout_s)
        self._channel.close()

    def _load(self, progress: Progressed) -> FollowingEngine:
        return self._factories.load_follower(self._spec, self._channel.context, progress)

    def _form(self) -> None:
        group = self._channel.group
        try:
            self._factories.form_group(group, self._spec.rank, group.form_deadline_s)
        except CannotForm as error:
            self._host.leave(GROUP_LOST, "model_unavailable", str(error))
            return
        self._channel.formed()
        self._recorder.note(wall(), "load_model", model=self._spec.model)
        self._engine.start()

    def _lost(self, what: str) -> None:
        self._log.error("the group is over", why=what)
        self._host.leave(GROUP_LOST, "runner_lost", what)

    def _ended(self, why: str) -> None:
        self._host.leave(STOPPED, "model_unavailable", f"the lead has left: {why}")

    def _heard(self, news: FollowerNews) -> None:
        match news:
            case Loaded():
                self._loaded(news)
            case LoadFailed():
                self._recorder.note(wall(), "error", message=news.message)
                self._log.error("loading failed", error=news.message)
                is_final = not lost_peer(news.message)
                self._channel.end(news.message, is_final=is_final)
                code = LOAD_FAILED if is_final else GROUP_LOST
                self._host.leave(code, "model_unavailable", news.message)
            case Broken():
                self._recorder.note(wall(), "error", message=news.message)
                self._log.critical("the engine raised", error=news.story)
                code = GROUP_LOST if lost_peer(news.message) else ENGINE_ERROR
                self._host.leave(code, "runner_lost", f"the engine failed: {news.message}")

    def _loaded(self, news: Loaded) -> None:
        if self._host.phase != "loading":
            return
        self.facts = news.facts
        self._channel.ready = True
        keep()
        self._host.signal("loaded")
        self._host.signal("warmed")
        self._log.info("ready", rank=self._spec.rank)
