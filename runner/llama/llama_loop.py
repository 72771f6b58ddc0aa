"""Talks to llama-server's process: starts it, waits until it is ready, and watches it.

The child belongs to the engine's thread and ends with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from bus.models.gguf import ENGINE, HOW_TO_ADD, GgufHeader, gguf_facts, read_header, weight_files
from bus.process.clock import now as clock_now
from bus.wire.messages.control import RunnerSpec
from runner.engine import EngineMemory, EngineStatus, LoadProgress
from runner.llama.child import Child, ChildKilled
from runner.llama.launch import LEAST_BUILD, LEAST_NUMBERED, Launch, launch_of
from runner.llama.wire import LlamaClient, LlamaTrouble

ASK_AGAIN_S = 0.05
LOOK_S = 0.25
"""Seconds between two checks of the child."""
WORKS_CPU_S = 0.05
"""Processor time that shows that the child computes; an idle one uses far less in a minute."""


def plan_launch(program: Sequence[str], spec: RunnerSpec, socket: Path) -> Launch:
    """Return how `program` serves a runner's GGUF model at a socket. Raises BadGguf, OSError,
    LlamaTrouble."""
    if not program:
        raise LlamaTrouble(f"{ENGINE} is not installed; install it: {HOW_TO_ADD}")
    folder = Path(spec.path)
    files = weight_files([path.name for path in folder.iterdir()])
    if not files:
        raise LlamaTrouble(f"{folder} no longer has exactly one GGUF model")
    headers: list[GgufHeader] = []
    for file in files:
        with open(folder / file, "rb") as stream:
            headers.append(read_header(stream, os.fstat(stream.fileno()).st_size))
    cores = len(os.sched_getaffinity(0))
    return launch_of(spec, folder / files[0], gguf_facts(*headers), socket, cores)


class LlamaLoop:
    """The `EngineLoop` of a GGUF model. `plan` returns how to start llama-server; it is called in
    the engine's thread, and may raise BadGguf and OSError. `launch` is set when the model is
    loaded. `was_killed`: the load failed because a signal killed llama-server; a retry may help."""

    def __init__(
        self, program: Sequence[str], plan: Callable[[], Launch], deadline_s: float
    ) -> None:
        self.status = EngineStatus()
        self.launch: Launch | None = None
        self.was_killed = False
        self._program = program
        self._plan = plan
        self._deadline_s = deadline_s
        self._child: Child | None = None
        self._stopping = threading.Event()
        self._worked = (0.0, clock_now())
        """The child's processor time at the last check that found it working, and the instant."""

    def load(self) -> None:
        """Start llama-server and wait until it has loaded the model. Raises OSError, ChildEnded,
        LlamaTrouble."""
        launch = self._plan()
        total = launch.facts.weights_bytes
        self.status.progress = LoadProgress("weights", 0, total)
        child = self._child = Child(self._program, launch)
        try:
            self._wait(child, LlamaClient(launch.socket))
        except BaseException as error:
            self.was_killed = isinstance(error, ChildKilled)
            child.end()
            raise
        child.is_ready = True
        self._measure(child)
        self.status.progress = LoadProgress("ready", total, total)
        self.launch = launch

    def run(self) -> None:
        """Watch llama-server until `stop`, then end it. Raises ChildEnded if it ends by itself."""
        child = self._child
        assert child is not None, "llama-server was not started"
        try:
            while not self._stopping.wait(LOOK_S):
                child.check()
                self._measure(child)
        finally:
            child.end()

    def check(self) -> None:
        """Measure the child's memory. Raises ChildEnded if it has ended by itself. May be called in
        any thread."""
        if self._child is not None and not self._stopping.is_set():
            self._child.check()
            self._measure(self._child)

    def end(self) -> None:
        """End the child; returns when it is gone. Called in the engine's thread."""
        self._stopping.set()
        if self._child is not None:
            self._child.end()

    def still_s(self, now: float) -> float:
        """Return for how long llama-server has used no processor time. It is busy during a batch of
        a prompt, however long that takes. May be called in any thread."""
        return now - self._worked[1]

    def stop(self) -> None:
        self._stopping.set()

    def kill(self) -> None:
        """Kill llama-server if it runs, for a process that ends now. May be called in any
        thread."""
        if self._child is not None:
            self._child.kill()

    def _wait(self, child: Child, client: LlamaClient) -> None:
        ends_at = clock_now() + self._deadline_s
        while not client.is_ready():
            child.check()
            if self._stopping.wait(ASK_AGAIN_S):
                raise LlamaTrouble("the runner was stopped while llama-server loaded the model")
            if clock_now() > ends_at:
                raise LlamaTrouble(f"llama-server was not ready within {self._deadline_s:g} s")
            self._measure(child)
        build = client.build()
        if LEAST_NUMBERED <= build < LEAST_BUILD:
            raise LlamaTrouble(
                f"llama-server is too old: build {build}; shoal needs build {LEAST_BUILD:,} or "
                "later, such as that of the extra shoal-llm[llamacpp]"
            )

    def _measure(self, child: Child) -> None:
        cpu_s = child.cpu_s()
        if cpu_s - self._worked[0] >= WORKS_CPU_S:
            self._worked = (cpu_s, clock_now())
        used = child.used_bytes()
        peak = max(used, self.status.memory.peak_bytes)
        self.status.memory = EngineMemory(used, 0, 0, peak)
