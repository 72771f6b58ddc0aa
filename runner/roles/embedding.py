"""Talks to the engine and text threads, and to gateways: serves an embedding model.

This role has a single rank. The engine is MLX, or llama-server for a GGUF file. It loads and warms
up, then the text thread opens the tokenizer. The runner is ready when both are done, and leaves if
either fails, or if llama-server ends.
"""

from __future__ import annotations

import os
from functools import partial

from bus.models.gguf import DTYPE
from bus.process.clock import wall
from bus.process.memory import keep
from bus.wire.messages.control import RunnerSpec
from bus.wire.messages.readings import RunnerReading
from runner.embedding import (
    Embedded,
    Embedder,
    EmbeddingLoop,
    EmbeddingResponder,
    InputsText,
    PreparedInputs,
)
from runner.lifecycle import ENGINE_ERROR, PREPARES_S
from runner.llama import ChildKilled, LlamaEmbedder, plan_launch
from runner.roles.llama import socket_of
from runner.roles.model_thread import Broken, LoadFailed, ThreadNews
from runner.roles.reports import RunnerMeter
from runner.roles.role import (
    TEXT_THREAD,
    Progressed,
    RoleParts,
    ServingRole,
    leave_without_text,
    watchdog,
)
from runner.schedule import SchedulerLoad
from runner.text import TextThread


class EmbeddingRole(ServingRole):
    """The role of a runner with an embedding model."""

    @staticmethod
    def serves(spec: RunnerSpec) -> bool:
        """Return whether a spec is for an embedding model or a reranker."""
        return spec.makes != "text"

    def __init__(self, parts: RoleParts) -> None:
        spec, shell, reactor = parts.spec, parts.shell, parts.shell.reactor
        self._loop = EmbeddingLoop(
            self._load_engine, lambda news: reactor.call(lambda: self._embedded(news))
        )
        super().__init__(parts, self._loop)
        self._socket = socket_of(shell)
        self._was_killed = False
        self._text: TextThread[PreparedInputs] = TextThread(
            self._open_text, reactor.call, self._text_loaded
        )
        self._responder = self._server.responder = EmbeddingResponder(
            self._server, reactor.now, loop=self._loop, text=self._text
        )
        self._since = reactor.now()
        self._meter = RunnerMeter(spec, shell.speaker, self._server.totals, reactor.now())
        self._preparing = watchdog(parts.spec, lambda: self._text.busy_since, TEXT_THREAD)
        self._computing = watchdog(parts.spec, lambda: self.status.busy_since)

    def watch(self, now: float) -> None:
        """Check as every serving role does; also leave if a batch or the tokenising of inputs takes
        too long."""
        super().watch(now)
        if self._preparing.passed(now, lambda: PREPARES_S) is not None:
            what = f"tokenising a request took more than {PREPARES_S:g} s"
            self._stuck(what, thread=TEXT_THREAD)
        if self._computing.passed(now, self._loop.limit_s) is not None:
            self._stuck(f"batch {self.status.steps_done + 1} exceeded its time limit")
        if why := self._loop.trouble():
            self._host.leave(ENGINE_ERROR, "runner_lost", f"the engine failed: {why}")

    def stop(self, timeout_s: float) -> None:
        """Stop the engine; kill llama-server if it does not end in time."""
        super().stop(timeout_s)
        self._loop.kill()

    def reading(self, now: float) -> RunnerReading:
        """Return the current reading of this runner, with rates since the previous reading. The
        memory of a GGUF model is that of llama-server."""
        load, status = self._load(), self.status
        reading = self._meter.reading(self._host.phase, status, load, self.open_requests, now)
        if self._spec.dtype == DTYPE:
            return reading.model_copy(update={"process_bytes": status.memory.active_bytes})
        return reading

    def _load(self) -> SchedulerLoad:
        """Return the numbers of running and of waiting requests, and the most urgent priority among
        each."""
        computing = self._responder.computing or frozenset()
        running: list[int] = []
        waiting: list[int] = []
        for request_id, request in self._server.open.items():
            priorities = running if request_id in computing else waiting
            priorities.append(request.request.priority)
        best, served = min(waiting, default=None), min(running, default=None)
        return SchedulerLoad(len(running), len(waiting), best, served)

    # --- from the threads ------------------------------------------------------------------

    def _load_engine(self, progress: Progressed) -> Embedder:
        spec, program = self._spec, self._factories.llama_server
        if spec.dtype != DTYPE:
            return self._factories.load_embedder(spec, progress)
        plan = partial(plan_launch, program, spec, self._socket)
        try:
            return LlamaEmbedder(program, plan, spec.load_deadline_s, progress)
        except ChildKilled:
            self._was_killed = True
            raise

    def _open_text(self) -> InputsText:
        reader = self._factories.load_inputs(self._spec, self._loop.tokenizer)
        return InputsText(reader, self._spec.makes)

    def _take_news(self, news: ThreadNews) -> None:
        """Process a report from the engine's thread. A load that failed because llama-server was
        killed may be retried, as that of a killed runner."""
        if isinstance(news, LoadFailed) and self._was_killed:
            news = Broken(news.message, news.message, news.story)
        super()._take_news(news)

    def _loaded(self) -> None:
        facts = self._loop.facts
        assert facts is not None, "the model is not loaded"
        self.described = {"dimensions": facts.dimensions, "context_tokens": facts.max_tokens}
        if facts.ranks:
            self.described = {"ranks": "documents", "context_tokens": facts.max_tokens}
        self._host.signal("loaded")
        self._recorder.note(wall(), "warmup")
        self._text.start(facts.max_tokens)

    def _text_loaded(self, error: Exception | None) -> None:
        if error is not None:
            leave_without_text(self._host, self._log, error)
            return
        keep()
        self._host.signal("warmed")
        self._recorder.note(wall(), "idle")
        seconds = round(self._reactor.now() - self._since, 2)
        self._log.info("ready", seconds=seconds, pid=os.getpid())

    def _embedded(self, news: Embedded) -> None:
        if self._host.phase != "ended":
            self._responder.embedded(news)
