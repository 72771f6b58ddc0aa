"""Talks to the engine and text threads, and to gateways through `serving`: a runner that decides.

It is rank 0 of its group, or alone. It has the group form, the engine thread load, warms up,
serves, and watches the engine and the other ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.process.clock import wall
from bus.service import Shell
from bus.wire.errors import FailReason
from bus.wire.messages.control import Phase, RunnerSpec
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.tokens import Entry
from runner.engine import Engine, EngineFacts, EngineStatus
from runner.group.lockstep import SharedPlan
from runner.lifecycle import step_deadline_s
from runner.recorder import FlightRecorder
from runner.roles.model_thread import Broken, Loaded, LoadFailed, ThreadNews
from runner.roles.rank_shell import RankShell
from runner.roles.reports import RunnerMeter
from runner.roles.role import Factories, Progressed, RoleHost
from runner.roles.startup import Startup
from runner.schedule import Scheduler, ScheduleSettings
from runner.serving.lead_loop import LeadLoop, Stepped
from runner.serving.request_server import RequestServer
from runner.text import TextWorks


class LeadRole:
    """The `runner.roles.role.Role` of rank 0, or of a runner alone; its channel's `PlanListener`.

    `tap` sees each step's entries as they are sent.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        host: RoleHost,
        *,
        shell: Shell,
        factories: Factories,
        recorder: FlightRecorder,
        tap: Callable[[int, list[Entry]], None],
    ) -> None:
        self.facts: EngineFacts | None = None
        self._spec = spec
        self._host = host
        self._factories = factories
        self._reactor = reactor = shell.reactor
        self._log = shell.log
        self._recorder = recorder
        self._loop = LeadLoop(
            self._load_engine,
            lambda facts: Scheduler(facts, _settings(spec)),
            lambda news: reactor.call(lambda: self._stepped(news)),
        )
        self._rank = RankShell(
            spec, host, shell, recorder, loop=self._loop, listener=self, heard=self._heard
        )
        self._startup = Startup(
            spec,
            host,
            shell,
            recorder,
            loop=self._loop,
            load_text=factories.load_text,
            opened=self._opened,
        )
        self._server = RequestServer(
            spec, shell, recorder=recorder, loop=self._loop, text=self._startup.text, tap=tap
        )
        self._meter = RunnerMeter(spec, self._server.totals, reactor.now())

    @property
    def status(self) -> EngineStatus:
        """Return where the engine stands."""
        return self._loop.status

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the sockets where gateways find this runner."""
        return self._server.addresses

    @property
    def open_requests(self) -> int:
        """Return how many requests are owed an end or an answer."""
        return self._server.open_requests

    @property
    def is_empty(self) -> bool:
        """Return whether every request has had its end."""
        return self._server.open_requests == 0

    def begin(self) -> None:
        """Wait for the other ranks; alone, load."""
        if self._rank.channel is None:
            self._rank.start()
        else:
            self._recorder.note(wall(), "connect_group", ranks=self._spec.size)

    def entered(self, phase: Phase) -> None:
        """Have requests taken, or refused, as the phase says."""
        self._server.phase = phase

    def watch(self, now: float) -> None:
        """Give up silent gateways; leave where a step takes longer than it may."""
        self._server.watch(now)
        status = self._loop.status
        self._rank.stepped(status.steps_done)
        busy_since = status.busy_since
        if busy_since is None:
            return
        learning = self._host.phase == "warming"
        limit_s = step_deadline_s(self._loop.expected_s(), 0 if learning else status.steps_done)
        if now - busy_since > limit_s:
            self._rank.stuck(f"step {status.steps_done + 1} took more than {limit_s:.1f} s")

    def reading(self, now: float) -> RunnerReading | None:
        """Return this second's reading, with the rates since the last one."""
        return self._meter.reading(
            self._host.identity(),
            self._loop.status,
            self._loop.scheduler_load(),
            self._server.open_requests,
            now,
        )

    def fail_all(self, reason: FailReason, message: str) -> None:
        """End every open request, and have the followers leave."""
        self._server.fail_all(reason, message)
        self._rank.end(message)

    def say_goodbye(self, message: str) -> None:
        """Take leave of gateways."""
        self._server.close(message)

    def stop(self, timeout_s: float) -> None:
        """Give the engine a moment to end its step, then drop the links to followers."""
        self._rank.stop(timeout_s)

    # --- the group -------------------------------------------------------------------------

    def form(self) -> None:
        """Join the ring and load."""
        if self._rank.form(self._factories):
            self._rank.start()

    def plan(self, shared: SharedPlan) -> None:
        """Do nothing: a lead is sent no plans."""

    def lost(self, what: str, is_final: bool) -> None:
        """Leave: a follower is gone, silent, or cannot load."""
        self._rank.lost(what, is_final)

    def ended(self, why: str) -> None:
        """Do nothing: a lead has no lead."""

    # --- from the engine's thread ----------------------------------------------------------

    def _load_engine(self, progress: Progressed) -> Engine:
        return self._factories.load_engine(self._spec, self._rank.context, progress)

    def _heard(self, news: ThreadNews) -> None:
        match news:
            case Loaded() if self._host.phase == "loading":
                facts = self.facts = self._loop.facts
                assert facts is not None, "loaded"
                self._host.signal("loaded")
                self._rank.ready()
                self._startup.loaded(facts)
            case Loaded():
                return
            case LoadFailed():
                self._rank.load_failed(news)
            case Broken():
                self._rank.broken(news)

    def _opened(self, works: TextWorks) -> None:
        self._server.works = works

    def _stepped(self, news: Stepped) -> None:
        if self._host.phase != "ended":
            self._server.stepped(news)
        if self._host.phase == "warming":
            self._startup.stepped(news)


def _settings(spec: RunnerSpec) -> ScheduleSettings:
    return ScheduleSettings(
        max_rows=spec.max_rows,
        max_waiting=spec.max_waiting,
        prefill_share=spec.prefill_share,
        prefix_bytes=spec.prefix_cache_bytes,
        paused_limit_s=spec.drop_idle_s,
    )
