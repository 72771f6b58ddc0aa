"""Talks to the worker and the clock: a runner's shell, from an empty slot to its exit code.

The main thread: it asks its worker what to be, has the engine thread load it, serves gateways
(`serving`), tells the worker each second where it stands, and watches the engine. It never waits.
Every way out goes through `leave`: open requests get their last word, the worker the exit code.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable

from bus.client import BusClient
from bus.clock import wall
from bus.codec import decode, encode
from bus.endpoints import Endpoints
from bus.errors import BadMessage, FailReason
from bus.ids import NodeId
from bus.messages.control import (
    AskRunner,
    Phase,
    RunnerReport,
    RunnerSpec,
    SlotDrain,
    SlotEnded,
    SlotRefused,
)
from bus.messages.readings import TokenTap
from bus.messages.tokens import Entry, TokenDelta
from bus.messages.wire import Message
from bus.service import Shell, run_service
from bus.topics import reading_topic
from bus.transport import Link
from runner.engine import Engine, EngineFacts, LoadProgress
from runner.engine_thread import Broken, EngineThread, Loaded, LoadFailed, News, Stepped
from runner.lifecycle import (
    ENGINE_ERROR,
    EXIT_CODES,
    LOAD_FAILED,
    NO_SPEC,
    SLOT_REFUSED,
    SPEC_DEADLINE_S,
    STOPPED,
    WEDGED,
    Signal,
    signalled,
    step_deadline_s,
)
from runner.prepared import TextWorks
from runner.recorder import FlightRecorder
from runner.reports import Me, Meter, runner_report, slot_hello
from runner.schedule import Scheduler
from runner.schedule_rows import ScheduleSettings
from runner.serving import Serving
from runner.text_thread import TextThread
from runner.warm_up import WarmUp

BEAT_S = 1.0
WATCH_S = 0.25
LAST_WORDS_S = 0.2
"""Between the last messages and the end of the process, so that they leave it."""

LoadEngine = Callable[[RunnerSpec, Callable[[LoadProgress], None]], Engine]
LoadText = Callable[[RunnerSpec], TextWorks]


class RunnerService:
    """One slot's process. `exit_code` is what the process is to end with."""

    def __init__(
        self, shell: Shell, *, slot: str, load_engine: LoadEngine, load_text: LoadText
    ) -> None:
        self.exit_code = STOPPED
        self._shell = shell
        self._slot = slot
        self._reactor = shell.reactor
        self._log = shell.log
        self._load_engine = load_engine
        self._load_text = load_text
        self._phase: Phase = "idle"
        self._message = ""
        self._spec: RunnerSpec | None = None
        self._facts: EngineFacts | None = None
        self._engine: EngineThread | None = None
        self._text: TextThread | None = None
        self._serving: Serving | None = None
        self._warm = {"engine": False, "text": False}
        self._warm_up: WarmUp | None = None
        self._drain: tuple[float, str] | None = None
        self._meter = Meter(self._reactor.now())
        self._since = self._reactor.now()
        self._recorder = FlightRecorder()
        self._recorder.note(wall(), "created", slot=slot)
        self._client = BusClient(
            shell.speaker, shell.endpoints, shell.reactor, shell.log, follow=False
        )
        speaker = shell.speaker
        self._worker = Link("dealer", identity=f"{speaker.process}/{speaker.boot}")
        self._worker.connect(shell.endpoints.worker)
        self._reactor.watch(self._worker, self._told)
        self._reactor.every(BEAT_S, self._beat)
        self._reactor.every(WATCH_S, self._watch)
        self._say_hello()

    def terminate(self) -> None:
        """SIGTERM: end at once, in good order."""
        self.leave(STOPPED, "model_unavailable", "the runner was told to stop")

    def close(self) -> None:
        """After the loop: give the engine a moment, then drop the links."""
        if self._engine is not None:
            self._engine.stop(1.0)
        self._reactor.unwatch(self._worker)
        self._worker.close()
        self._client.close()

    # --- the worker's word ----------------------------------------------------------------

    def _told(self, frames: list[bytes]) -> None:
        try:
            message = decode(frames[-1]).message
        except BadMessage as error:
            self._log.warning("dropped a message", error=str(error)[:200])
            return
        match message:
            case RunnerSpec():
                self._become(message)
            case SlotDrain():
                self._start_drain(message)
            case SlotRefused():
                self._log.error("the worker has nothing for this slot", why=message.message)
                self.leave(SLOT_REFUSED, "model_unavailable", message.message)
            case AskRunner():
                self._tell(self._report())
            case _:
                self._log.warning("unexpected message", kind=type(message).__name__)

    def _become(self, spec: RunnerSpec) -> None:
        if self._spec is not None:
            if (spec.instance, spec.generation) != (self._spec.instance, self._spec.generation):
                self._log.warning("a second spec was ignored", instance=spec.instance)
            return
        self._spec = spec
        self._since = self._reactor.now()
        self._log = self._log.bind(instance=spec.instance, generation=spec.generation)
        if spec.size != 1:
            self.leave(LOAD_FAILED, "model_unavailable", "this build runs groups of one rank")
            return
        self._recorder.note(wall(), "load_model", model=spec.model)
        engine = EngineThread(
            lambda progress: self._load_engine(spec, progress),
            lambda facts: Scheduler(facts, _settings(spec)),
            lambda news: self._reactor.call(lambda: self._heard(news)),
        )
        text = TextThread(lambda: self._load_text(spec), self._reactor.call, self._text_loaded)
        self._engine, self._text = engine, text
        self._serving = Serving(
            spec,
            boot=self._shell.speaker.boot,
            reactor=self._reactor,
            log=self._log,
            recorder=self._recorder,
            engine=engine,
            text=text,
            wall=wall,
            tap=self._tap,
        )
        self._signal("spec")
        engine.start()

    def _start_drain(self, drain: SlotDrain) -> None:
        spec = self._spec
        if spec is None or (drain.instance, drain.generation) != (spec.instance, spec.generation):
            self._log.warning("a drain for another generation was ignored")
            return
        self._drain = (self._reactor.now() + drain.deadline_s, drain.why)
        self._signal("drain")
        if self._phase == "ended":
            self.leave(STOPPED, "model_unavailable", drain.why)
        self._watch()

    # --- the engine's word -----------------------------------------------------------------

    def _heard(self, news: News) -> None:
        match news:
            case Stepped():
                if self._serving is not None and self._phase != "ended":
                    self._serving.stepped(news)
                if self._phase == "warming":
                    self._warming(news)
            case Loaded():
                self._loaded(news.facts)
            case LoadFailed():
                self._recorder.note(wall(), "error", message=news.message)
                self._log.error("loading failed", error=news.message)
                self.leave(LOAD_FAILED, "model_unavailable", news.message)
            case Broken():
                self._recorder.note(wall(), "error", message=news.message)
                self._log.critical("the engine raised", error=news.story)
                self.leave(ENGINE_ERROR, "runner_lost", f"the engine failed: {news.message}")

    def _loaded(self, facts: EngineFacts) -> None:
        engine, text = self._engine, self._text
        if self._phase != "loading" or engine is None or text is None or self._spec is None:
            return
        self._facts = facts
        self._signal("loaded")
        text.start(min(facts.context_tokens, self._spec.context_tokens))
        self._recorder.note(wall(), "warmup")
        assert engine.scheduler is not None, "loaded"
        warm_up = self._warm_up = WarmUp(self._spec.model, facts, engine.scheduler)
        with engine.lock:
            warm_up.advance(self._reactor.now())
        engine.wake()

    def _warming(self, news: Stepped) -> None:
        warm_up, engine = self._warm_up, self._engine
        if warm_up is None or engine is None:
            return
        try:
            ended = any(warm_up.ended(event) for event in news.events)
        except RuntimeError as error:
            self.leave(LOAD_FAILED, "model_unavailable", str(error))
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
            self.leave(LOAD_FAILED, "model_unavailable", str(works))
        elif self._serving is not None:
            self._serving.works = works
            self._is_warm("text")

    def _is_warm(self, what: str) -> None:
        self._warm[what] = True
        if all(self._warm.values()) and self._phase == "warming":
            gc.collect()
            gc.freeze()
            self._signal("warmed")
            self._recorder.note(wall(), "idle")
            seconds = round(self._reactor.now() - self._since, 2)
            self._log.info("ready", seconds=seconds, pid=os.getpid())

    # --- the clock's word ----------------------------------------------------------------

    def _watch(self) -> None:
        now = self._reactor.now()
        if self._phase == "ended":
            return
        spec, engine, serving = self._spec, self._engine, self._serving
        if spec is None or engine is None or serving is None:
            if now - self._since > SPEC_DEADLINE_S:
                self.leave(NO_SPEC, "model_unavailable", "no worker gave a spec")
            return
        serving.watch(now)
        if self._phase in ("loading", "warming") and now - self._since > spec.load_deadline_s:
            what = f"not ready after {spec.load_deadline_s:g} s"
            self.leave(LOAD_FAILED, "model_unavailable", what)
            return
        busy_since = engine.busy_since
        if busy_since is not None:
            limit_s = step_deadline_s(engine.expected_s(), engine.steps_done)
            if now - busy_since > limit_s:
                what = f"step {engine.steps_done + 1} took more than {limit_s:.1f} s"
                self._log.critical("the engine is stuck", what=what)
                self.leave(WEDGED, "runner_lost", what)
                return
        if self._phase == "draining" and self._drain is not None:
            deadline_at, why = self._drain
            if serving.open_requests == 0 or now >= deadline_at:
                self._signal("empty")
                self.leave(STOPPED, "model_unavailable", why)

    def _beat(self) -> None:
        self._say_hello()
        if self._serving is not None and self._engine is not None and self._phase != "ended":
            self._client.publish(
                reading_topic("runner", self._shell.speaker.node, self._shell.speaker.process),
                self._meter.reading(self._me(), self._serving, self._engine, self._reactor.now()),
            )

    # --- what is told ----------------------------------------------------------------------

    def leave(self, code: int, reason: FailReason, message: str) -> None:
        """End the process soon: last words first. The first caller decides the code."""
        if self.exit_code or self._message:
            return
        self.exit_code, self._message = code, message
        self._phase = "ended"
        self._recorder.note(wall(), "shutdown_cleanup", exit_code=code, message=message)
        self._log.info("leaving", exit_code=code, meaning=EXIT_CODES[code], why=message)
        spec, speaker = self._spec, self._shell.speaker
        if self._serving is not None:
            self._serving.phase = "ended"
            self._serving.fail_all(reason, message)
        self._say_hello()
        self._tell(
            SlotEnded(
                slot=self._slot,
                boot=speaker.boot,
                instance=spec.instance if spec else None,
                generation=spec.generation if spec else 0,
                rank=spec.rank if spec else 0,
                exit_code=code,
                message=message,
            )
        )
        self._reactor.later(LAST_WORDS_S / 2, lambda: self._good_bye(message))
        self._reactor.later(LAST_WORDS_S, self._reactor.stop)

    def _good_bye(self, message: str) -> None:
        if self._serving is not None:
            self._serving.close(message)

    def _signal(self, signal: Signal) -> None:
        phase = signalled(self._phase, signal)
        if phase != self._phase:
            self._phase = phase
            if self._serving is not None:
                self._serving.phase = phase
            self._say_hello()

    def _tell(self, message: Message) -> None:
        self._worker.send(encode(self._client.envelope(message)))

    def _say_hello(self) -> None:
        hello = slot_hello(
            self._me(), self._spec, self._serving, self._engine, message=self._message
        )
        self._tell(hello)

    def _report(self) -> RunnerReport:
        return runner_report(
            self._me(), self._spec, self._facts, self._engine, recorder=self._recorder
        )

    def _me(self) -> Me:
        speaker = self._shell.speaker
        return Me(speaker.node, speaker.process, speaker.boot, self._slot, os.getpid(), self._phase)

    def _tap(self, step: int, entries: list[Entry]) -> None:
        spec = self._spec
        if spec is None or "token" not in self._client.wanted:
            return
        for entry in entries:
            if isinstance(entry, TokenDelta):
                tapped = TokenTap(
                    instance=spec.instance,
                    request_id=entry.request_id,
                    choice=entry.choice,
                    channel=entry.channel,
                    text=entry.text,
                    step=step,
                )
                self._client.publish(f"token.{spec.instance}", tapped)


def _settings(spec: RunnerSpec) -> ScheduleSettings:
    return ScheduleSettings(
        max_rows=spec.max_rows,
        max_waiting=spec.max_waiting,
        prefill_share=spec.prefill_share,
        prefix_bytes=spec.prefix_cache_bytes,
        paused_limit_s=spec.drop_idle_s,
    )


def run_slot(
    slot: str,
    *,
    node: NodeId,
    endpoints: Endpoints,
    log_level: str,
    load_engine: LoadEngine,
    load_text: LoadText,
) -> int:
    """Serve one slot from start to end; the exit code is of the table in `runner.lifecycle`."""
    services: list[RunnerService] = []

    def build(shell: Shell) -> RunnerService:
        service = RunnerService(shell, slot=slot, load_engine=load_engine, load_text=load_text)
        services.append(service)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _n, _f: shell.reactor.call(service.terminate))
        return service

    code = run_service(
        f"runner:{slot}", node=node, endpoints=endpoints, log_level=log_level, build=build
    )
    return code or (services[0].exit_code if services else 0)
