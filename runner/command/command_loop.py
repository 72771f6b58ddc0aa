"""Talks to a program of `engines.toml`: starts it, waits until it is ready, and watches it.

The program is ready when its health path answers 200, one of its own processes listens at the port,
and it has answered a short request as its API requires. It belongs to the engine's thread and ends
with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from bus.models.tasks import CommandEngine
from bus.process.clock import now as clock_now
from bus.process.installation import Environment
from bus.translation import BrokenStream, Filtered, Hearing, ToldInPassing, events_in
from runner.command.calls import EngineClient, EngineTrouble, Line, LostStream, News, is_end
from runner.command.engine_process import EngineProcess
from runner.engine import EngineMemory, EngineStatus, LoadProgress

ASK_AGAIN_S = 0.1
LOOK_S = 0.25
"""Seconds between two checks of the program."""
HEALTH_EVERY_S = 2.0
EARLIER_S = 1.0
"""A load is given up this many seconds before the runner's own deadline, so that its more exact
reason is reported."""
OVER_RATIO = 1.10
"""The program is ended if it uses this multiple of the memory that `engines.toml` states."""


class CommandLoop:
    """The `EngineLoop` of a program. `plan` returns its settings and the environment of packages
    that it runs in, None without one; it is called in the engine's thread, and may raise
    EngineTrouble. `warm_up` returns the path and the body of a short request, and the translator of
    its answer. `client` is set when the program is ready. `news_at` is when the program last sent a
    part of an answer; the main thread writes it."""

    def __init__(
        self,
        name: str,
        plan: Callable[[], tuple[CommandEngine, Environment | None]],
        warm_up: Callable[[CommandEngine], tuple[str, dict[str, object], Hearing]],
        deadline_s: float,
    ) -> None:
        self.status = EngineStatus()
        self.engine: CommandEngine | None = None
        self.client: EngineClient | None = None
        self.news_at = 0.0
        self._name = name
        self._plan = plan
        self._warm_up = warm_up
        self._deadline_s = deadline_s
        self._process: EngineProcess | None = None
        self._stopping = threading.Event()

    def load(self) -> None:
        """Start the program and wait until it is ready. Raises OSError, EngineEnded,
        EngineTrouble."""
        engine, venv = self._plan()
        self.engine = engine
        total = engine.memory_bytes or 0
        self.status.progress = LoadProgress("weights", 0, total)
        process = self._process = EngineProcess(self._name, engine, venv)
        try:
            client = EngineClient(self._title, process.port, process.key, stall_s=engine.stall_s)
            self._wait(process, client, engine)
            self.status.progress = LoadProgress("probing", total, total)
            self._try_out(process, client, engine)
        except BaseException:
            process.end()
            raise
        self._measure(process)
        self.status.progress = LoadProgress("ready", total, total)
        self.client = client

    def run(self) -> None:
        """Watch the program until `stop`, then end it. Raises EngineEnded if it ends by itself, and
        EngineTrouble if it is silent or takes too much memory."""
        process, client, engine = self._process, self.client, self.engine
        assert process is not None and client is not None and engine is not None, "not loaded"
        healthy_at = asked_at = clock_now()
        try:
            while not self._stopping.wait(LOOK_S):
                process.check()
                self._measure(process)
                self._check_memory(engine)
                now = clock_now()
                if now - asked_at < HEALTH_EVERY_S:
                    continue
                why = client.why_not_ready(engine.health)
                asked_at = clock_now()
                healthy_at = healthy_at if why else asked_at
                if asked_at - max(healthy_at, self.news_at) > engine.stall_s:
                    raise EngineTrouble(
                        f"{self._title} sent nothing for {engine.stall_s:g} s, and {why}"
                    )
        finally:
            process.end()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def _title(self) -> str:
        return f"the engine {self._name}"

    def _wait(self, process: EngineProcess, client: EngineClient, engine: CommandEngine) -> None:
        ends_at = clock_now() + max(self._deadline_s / 2, self._deadline_s - EARLIER_S)
        while why := client.why_not_ready(engine.health) or self._not_ours(process):
            process.check()
            if self._stopping.wait(ASK_AGAIN_S):
                raise EngineTrouble(f"the runner was stopped while {self._title} was loading")
            if clock_now() > ends_at:
                words = process.words()
                last = f"; its last output: {words}" if words else ""
                raise EngineTrouble(
                    f"{self._title} was not ready within {self._deadline_s:g} s: {why}{last}"
                )
            self._measure(process)
            self._check_memory(engine)

    def _not_ours(self, process: EngineProcess) -> str:
        return "" if process.listens() else f"another program answers at port {process.port}"

    def _try_out(self, process: EngineProcess, client: EngineClient, engine: CommandEngine) -> None:
        """Send the program a short request, and check its answer. Raises EngineTrouble."""
        path, body, hearing = self._warm_up(engine)
        counts, news = ToldInPassing(is_stream=True), SimpleQueue[News]()
        stream = client.stream(path, body, news.put)
        ends_at = clock_now() + self._deadline_s
        try:
            while clock_now() < ends_at and not self._stopping.is_set():
                process.check()
                try:
                    part = news.get(timeout=LOOK_S)
                except Empty:
                    continue
                if isinstance(part, LostStream):
                    raise EngineTrouble(part.why)
                if not isinstance(part, Line):
                    break
                lines = counts.passed(part.data)
                for event in events_in(lines, self._title):
                    hearing.take(event)
                if is_end(part.data):
                    break
        except (BrokenStream, Filtered) as error:
            raise EngineTrouble(str(error)) from error
        finally:
            stream.close()
        if not counts.whole:
            raise EngineTrouble(f"{self._title} did not finish the answer to a short request")

    def _measure(self, process: EngineProcess) -> None:
        used = process.used_bytes()
        peak = max(used, self.status.memory.peak_bytes)
        self.status.memory = EngineMemory(used, 0, 0, peak)

    def _check_memory(self, engine: CommandEngine) -> None:
        used, stated = self.status.memory.active_bytes, engine.memory_bytes
        if engine.gpus or stated is None:
            return  # on GPUs, `memory_bytes` is memory of the GPUs, which is not measured
        if used > OVER_RATIO * stated:
            raise EngineTrouble(
                f"{self._title} uses {used:,} bytes of memory, but engines.toml states "
                f"memory_bytes = {stated:,}"
            )
