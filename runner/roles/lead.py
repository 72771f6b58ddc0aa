"""Talks to the engine and text threads, and to gateways through `serving`: a runner that decides.

It is rank 0 of its group, or alone. It has the group form, the engine thread load, warms up,
serves, and watches the engine and the other ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from bus.links.reactor import PollReactor
from bus.links.security import Security
from bus.process.clock import wall
from bus.process.logs import Log
from bus.process.memory import keep
from bus.wire.errors import FailReason
from bus.wire.messages.control import Phase, RunnerSpec
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.tokens import Entry
from runner.engine import EngineFacts
from runner.group.group_config import CannotForm
from runner.group.plan_channel import LeadChannel
from runner.lifecycle import (
    ENGINE_ERROR,
    GROUP_LOST,
    LOAD_FAILED,
    WEDGED,
    lost_peer,
    step_deadline_s,
)
from runner.recorder import FlightRecorder
from runner.roles.reports import RunnerMeter, SlotIdentity
from runner.roles.role import Factories, RoleHost
from runner.schedule.scheduler import Scheduler
from runner.schedule.table import ScheduleSettings
from runner.serving.engine_thread import Broken, EngineThread, Loaded, LoadFailed, News, Stepped
from runner.serving.request_server import RequestServer
from runner.serving.warm_up import WarmUp
from runner.text.prepared import TextWorks
from runner.text.thread import TextThread


class LeadRole:
    """See the module's law, and `runner.roles.role.Role`."""

    def __init__(
        self,
        spec: RunnerSpec,
        host: RoleHost,
        *,
        identity: Callable[[], SlotIdentity],
        factories: Factories,
        security: Security | None,
        reactor: PollReactor,
        log: Log,
        recorder: FlightRecorder,
        tap: Callable[[int, list[Entry]], None],
    ) -> None:
        self.facts: EngineFacts | None = None
        self._spec = spec
        self._host = host
        self._identity = identity
        self._factories = factories
        self._reactor = reactor
        self._log = log
        self._recorder = recorder
        self._since = reactor.now()
        self._meter = RunnerMeter(self._since)
        self._warm = {"engine": False, "text": False}
        self._warm_up: WarmUp | None = None
        self._channel: LeadChannel | None = None
        if spec.size > 1:
            self._channel = LeadChannel(
                spec,
                reactor,
                log,
                security=security,
                on_formed=self._form,
                on_lost=self._lost_a_rank,
            )
        context = self._channel.context if self._channel else None
        self.works = self._engine = EngineThread(
            lambda progress: factories.load_engine(spec, context, progress),
            lambda facts: Scheduler(facts, _settings(spec)),
            lambda news: reactor.call(lambda: self._heard(news)),
        )
        self._text = TextThread(lambda: factories.load_text(spec), reactor.call, self._text_loaded)
        self._serving = RequestServer(
            spec,
            boot=identity().boot,
            reactor=reactor,
            log=log,
            recorder=recorder,
            engine=self._engine,
            text=self._text,
            wall=wall,
            tap=tap,
            security=security,
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._serving.addresses

    @property
    def open_requests(self) -> int:
        return self._serving.open_requests

    @property
    def is_empty(self) -> bool:
        return self._serving.open_requests == 0

    def begin(self) -> None:
        if self._channel is not None:
            self._recorder.note(wall(), "connect_group", ranks=self._spec.size)
            return
        self._load()

    def entered(self, phase: Phase) -> None:
        self._serving.phase = phase

    def watch(self, now: float) -> None:
        self._serving.watch(now)
        engine = self._engine
        if self._channel is not None:
            self._channel.step = engine.steps_done
        busy_since = engine.busy_since
        if busy_since is None:
            return
        learning = self._host.phase == "warming"
        limit_s = step_deadline_s(engine.expected_s(), 0 if learning else engine.steps_done)
        if now - busy_since > limit_s:
            what = f"step {engine.steps_done + 1} took more than {limit_s:.1f} s"
            self._log.critical("the engine is stuck", what=what)
            self._host.leave(WEDGED, "runner_lost", what)

    def reading(self, now: float) -> RunnerReading | None:
        return self._meter.reading(self._identity(), self._serving, self._engine, now)

    def fail_all(self, reason: FailReason, message: str) -> None:
        self._serving.fail_all(reason, message)
        if self._channel is not None:
            self._channel.end(message)

    def say_goodbye(self, message: str) -> None:
        self._serving.close(message)

    def stop(self, timeout_s: float) -> None:
        self._engine.stop(timeout_s)
        if self._channel is not None:
            self._channel.close()

    # --- the group -------------------------------------------------------------------------

    def _form(self) -> None:
        channel = self._channel
        assert channel is not None, "a group"
        try:
            self._factories.form_group(channel.group, 0, channel.group.form_deadline_s)
        except CannotForm as error:
            self._host.leave(GROUP_LOST, "model_unavailable", str(error))
            return
        channel.formed()
        self._load()

    def _lost_a_rank(self, what: str, is_final: bool) -> None:
        self._log.error("the group is over", why=what)
        self._host.leave(LOAD_FAILED if is_final else GROUP_LOST, "runner_lost", what)

    # --- loading and warming up ------------------------------------------------------------

    def _load(self) -> None:
        self._recorder.note(wall(), "load_model", model=self._spec.model)
        self._engine.start()

    def _heard(self, news: News) -> None:
        match news:
            case Stepped():
                if self._host.phase != "ended":
                    self._serving.stepped(news)
                if self._host.phase == "warming":
                    self._warming(news)
            case Loaded():
                self._loaded(news.facts)
            case LoadFailed():
                self._recorder.note(wall(), "error", message=news.message)
                self._log.error("loading failed", error=news.message)
                code = GROUP_LOST if lost_peer(news.message) else LOAD_FAILED
                self._host.leave(code, "model_unavailable", news.message)
            case Broken():
                self._recorder.note(wall(), "error", message=news.message)
                self._log.critical("the engine raised", error=news.story)
                code = GROUP_LOST if lost_peer(news.message) else ENGINE_ERROR
                self._host.leave(code, "runner_lost", f"the engine failed: {news.message}")

    def _loaded(self, facts: EngineFacts) -> None:
        engine = self._engine
        if self._host.phase != "loading":
            return
        self.facts = facts
        self._host.signal("loaded")
        if self._channel is not None:
            self._channel.ready = True
        self._text.start(min(facts.context_tokens, self._spec.context_tokens))
        self._recorder.note(wall(), "warmup")
        assert engine.scheduler is not None, "loaded"
        warm_up = self._warm_up = WarmUp(self._spec.model, facts, engine.scheduler)
        with engine.lock:
            warm_up.advance(self._reactor.now())
        engine.wake()

    def _warming(self, news: Stepped) -> None:
        warm_up, engine = self._warm_up, self._engine
        if warm_up is None:
            return
        try:
            ended = any(warm_up.ended(event) for event in news.events)
        except RuntimeError as error:
            self._host.leave(LOAD_FAILED, "model_unavailable", str(error))
            return
        if ended:
            with engine.lock:
                goes_on = warm_up.advance(self._reactor.now())
            engine.wake()
            if not goes_on:
                self._is_warm("engine")

    def _text_loaded(self, works: TextWorks | Exception) -> None:
        if isinstance(works, Exception):
            self._log.error("the tokenizer could not be loaded", error=str(works))
            self._host.leave(LOAD_FAILED, "model_unavailable", str(works))
        else:
            self._serving.works = works
            self._is_warm("text")

    def _is_warm(self, what: str) -> None:
        self._warm[what] = True
        if all(self._warm.values()) and self._host.phase == "warming":
            keep()
            self._host.signal("warmed")
            self._recorder.note(wall(), "idle")
            seconds = round(self._reactor.now() - self._since, 2)
            self._log.info("ready", seconds=seconds, pid=os.getpid())


def _settings(spec: RunnerSpec) -> ScheduleSettings:
    return ScheduleSettings(
        max_rows=spec.max_rows,
        max_waiting=spec.max_waiting,
        prefill_share=spec.prefill_share,
        prefix_bytes=spec.prefix_cache_bytes,
        paused_limit_s=spec.drop_idle_s,
    )
