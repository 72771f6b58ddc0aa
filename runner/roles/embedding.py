"""Talks to the engine and text threads, and to gateways: serves an embedding model.

This role has a single rank. The engine loads and warms up, then the text thread opens the
tokenizer. The runner is ready when both are done, and leaves if either fails.
"""

from __future__ import annotations

import os

from bus.process.clock import wall
from bus.process.memory import keep
from bus.wire.errors import FailReason
from bus.wire.ids import RequestId
from bus.wire.messages.control import Phase
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.tokens import Cancel
from runner.embedding import Embedded, EmbeddingLoop, EmbeddingServer, InputsText, PreparedInputs
from runner.engine import Embedder
from runner.lifecycle import PREPARES_S
from runner.roles.reports import RunnerMeter
from runner.roles.role import (
    NO_PEER,
    TEXT_THREAD,
    Progressed,
    Role,
    RoleParts,
    leave_without_text,
    watchdog,
)
from runner.text import TextThread


class EmbeddingRole(Role):
    """The role of a runner with an embedding model."""

    def __init__(self, parts: RoleParts) -> None:
        spec, shell, reactor = parts.spec, parts.shell, parts.shell.reactor
        self._loop = EmbeddingLoop(
            self._load_engine, lambda news: reactor.call(lambda: self._embedded(news))
        )
        super().__init__(parts, self._loop)
        self._text: TextThread[PreparedInputs] = TextThread(
            lambda: InputsText(parts.factories.load_inputs(spec)), reactor.call, self._text_loaded
        )
        self._server = EmbeddingServer(
            spec, shell, recorder=parts.recorder, loop=self._loop, text=self._text
        )
        self.addresses = self._server.addresses
        self._since = reactor.now()
        self._meter = RunnerMeter(spec, shell.speaker, self._server.totals, reactor.now())
        self._preparing = watchdog(parts.spec, lambda: self._text.busy_since, TEXT_THREAD)
        self._computing = watchdog(parts.spec, lambda: self.status.busy_since)

    @property
    def open_requests(self) -> int:
        return len(self._server.owed)

    def cancel(self, request_id: RequestId) -> bool:
        """End a request as if its client had disconnected; return False if it is not open."""
        if request_id not in self._server.owed:
            return False
        self._server.act_on(NO_PEER, Cancel(request_id, "client"), self._reactor.now())
        return True

    def entered(self, phase: Phase) -> None:
        """Accept or refuse requests according to the phase."""
        self._server.intake.phase = phase

    def watch(self, now: float) -> None:
        """Give up silent gateways; leave if a batch or the tokenising of inputs takes too long."""
        self._server.watch(now)
        super().watch(now)
        if self._preparing.passed(now, lambda: PREPARES_S) is not None:
            what = f"tokenising a request took more than {PREPARES_S:g} s"
            self._stuck(what, thread=TEXT_THREAD)
        if self._computing.passed(now, self._loop.limit_s) is not None:
            self._stuck(f"batch {self.status.steps_done + 1} exceeded its time limit")

    def reading(self, now: float) -> RunnerReading:
        """Return this second's reading, with rates since the last one."""
        load = self._server.load()
        return self._meter.reading(self._host.phase, self.status, load, self.open_requests, now)

    def fail_all(self, reason: FailReason, message: str) -> None:
        self._server.fail_all(reason, message)
        super().fail_all(reason, message)

    def say_goodbye(self, message: str) -> None:
        self._server.close(message)

    # --- from the threads ------------------------------------------------------------------

    def _load_engine(self, progress: Progressed) -> Embedder:
        return self._factories.load_embedder(self._spec, progress)

    def _loaded(self) -> None:
        facts = self._server.intake.facts = self._loop.facts
        assert facts is not None, "loaded"
        self.described = {"dimensions": facts.dimensions, "context_tokens": facts.max_tokens}
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
            self._server.embedded(news)
