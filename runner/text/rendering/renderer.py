"""Talks to the process that renders templates (`sandbox`): starts it, sends questions, ends it.

The process is started on first use and then reused. A process that exceeds a limit is killed, and
the next question starts another. The limits are CPU time and, as a backstop, wall time without the
time in which the process waited for a core. So a busy machine stops no honest template. After a
template was stopped, the next renders have smaller limits until one succeeds, so that waiting
requests do not wait too long.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from bus.patience import LostTime
from bus.process.clock import CoreWaits, now, tasks_of
from runner.text.rendering import sandbox
from runner.text.rendering.limits import (
    RendererNotReady,
    RenderLimits,
    TemplateError,
    TemplateStopped,
)
from runner.text.rendering.sandbox import QUESTION

STARTS_S = 10.0
NOT_READY = (
    "the process that renders chat templates was not ready in time ({why}, not "
    "counting time without CPU); this is not the model's fault; retry when the "
    "machine is less busy"
)
LOOKS_S = 0.05
LEAST_SHARE = 0.25
"""After renders were stopped, the next one gets a smaller part of the time limit, but at least this
part."""
ALARM_S = 1.0
"""A rendering process ends itself when it has used this many seconds of CPU time more than its
limit."""
PASSED_ON = ("PATH", "PYTHONPATH", "PYTHONHOME", "TZ", "LANG", "LC_ALL", "SHOAL_HOME", "SPT_NOENV")
"""Environment variables that the rendering process gets. Excluded are secrets, and libraries to
preload."""
HEAP = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(8 << 20)}
"""Settings of glibc's memory: a prompt of a megabyte costs no page faults, and the memory of a
larger prompt is returned to the system."""


class _Sandbox:
    """One rendering process, with the limits that the last call of `begin` set."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(sandbox.__file__))],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                cwd="/",
                env={name: os.environ[name] for name in PASSED_ON if name in os.environ} | HEAP,
            )
        ours.settimeout(LOOKS_S)
        self._link = ours
        self._used_s = 0.0
        self._wall_s = self._processor_s = STARTS_S
        self._memory_bytes = 1 << 30
        self._lost = LostTime(CoreWaits(tasks_of(self.process.pid), self.process.pid))
        self._began_at = now()

    def begin(self, processor_s: float, wall_s: float, memory_bytes: int) -> None:
        """Start the time limits of the next render now."""
        self._processor_s, self._wall_s = processor_s, wall_s
        self._memory_bytes = memory_bytes
        self._began_at = now()
        self._lost.pass_by(self._began_at)

    def send(self, data: bytes) -> None:
        """Send a template and its variables to the process. Raises TemplateStopped."""
        left = memoryview(data)
        while left:
            try:
                left = left[self._link.send(left) :]
            except TimeoutError:
                self._look()
            except OSError:
                raise self._ended() from None

    def answer(self, text_bytes: int) -> tuple[bytes, bytearray]:
        """Return the kind of the answer, and its text of at most `text_bytes`. Raises
        TemplateStopped."""
        kind, self._used_s, size = sandbox.ANSWER.unpack(self._receive(sandbox.ANSWER.size))
        if kind == sandbox.NO_MEMORY:
            raise TemplateStopped(
                f"the template needed more than {self._memory_bytes >> 20} MiB of memory"
            )
        if kind == sandbox.TOO_LONG or size > text_bytes:
            raise TemplateStopped(f"the rendered text is larger than {text_bytes >> 20} MiB")
        return kind, self._receive(size)

    def end(self) -> None:
        """Kill the rendering process and wait until it has ended."""
        self._link.close()
        self.process.kill()
        self.process.wait()

    def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        left = memoryview(data)
        while left:
            try:
                count = self._link.recv_into(left)
            except TimeoutError:
                self._look()
                continue
            except OSError:
                count = 0
            if not count:
                raise self._ended()
            left = left[count:]
        return data

    def _look(self) -> None:
        """Raise TemplateStopped if the rendering process has exceeded a limit."""
        try:
            process = psutil.Process(self.process.pid)
            times, resident = process.cpu_times(), process.memory_info().rss
        except psutil.Error:
            raise self._ended() from None
        if times.user + times.system - self._used_s > self._processor_s:
            raise TemplateStopped(
                f"the template took more than {self._processor_s:g} s of CPU time"
            )
        at = now()
        self._began_at = min(at, self._began_at + self._lost.look(at))
        if at - self._began_at > self._wall_s:
            raise TemplateStopped(f"the template took more than {self._wall_s:g} s")
        if resident > self._memory_bytes:
            raise TemplateStopped(
                f"the template used more than {self._memory_bytes >> 20} MiB of memory"
            )

    def _ended(self) -> TemplateStopped:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ALARM_S)
        code = self.process.returncode
        why = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
        return TemplateStopped(f"the rendering process ended ({why})")


class Renderer:
    """Renders chat templates in a separate process. One thread uses it; the process ends with that
    thread, or with `close`."""

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self._limits = limits or RenderLimits()
        self._share = 1.0
        self._sandbox: _Sandbox | None = None
        self._end: Callable[[], object] | None = None

    @property
    def pid(self) -> int | None:
        """Return the rendering process's id; None if there is none."""
        return None if self._sandbox is None else self._sandbox.process.pid

    def close(self) -> None:
        if self._end is not None:
            self._end()
        self._sandbox = self._end = None

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return the template's text; `variables` are plain data.

        Raises TemplateError with the template's words, TemplateStopped if it exceeded a limit,
        RendererNotReady if its process did not start.
        """
        request = marshal.dumps((template, dict(variables)))
        limits, share = self._limits, self._share
        memory_bytes = limits.memory_bytes + limits.memory_per_byte * len(request)
        text_bytes = limits.text_bytes + limits.text_per_byte * len(request)
        alarm_s = limits.processor_s * share + ALARM_S
        question = QUESTION.pack(len(request), memory_bytes, text_bytes, alarm_s)
        try:
            process = self._opened()
            process.begin(limits.processor_s * share, limits.wall_s * share, memory_bytes)
            process.send(question)
            process.send(request)
            kind, data = process.answer(text_bytes)
        except RendererNotReady:
            self.close()
            raise
        except TemplateStopped:
            self.close()
            self._share = max(LEAST_SHARE, share / 2)
            raise
        self._share = 1.0
        text = data.decode("utf-8", "surrogatepass")
        if kind == sandbox.RAISED:
            raise TemplateError(text)
        return text

    def _opened(self) -> _Sandbox:
        """Return a rendering process that waits for work; start one if there is none."""
        if self._sandbox is None or self._sandbox.process.poll() is not None:
            self.close()
            self._sandbox = made = _Sandbox()
            self._end = weakref.finalize(self, made.end)
            try:
                made.answer(0)
            except TemplateStopped as why:
                raise RendererNotReady(NOT_READY.format(why=why)) from why
        return self._sandbox
