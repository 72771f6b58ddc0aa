"""Talks to a child process: measures the BLAS libraries again while this node is idle.

BLAS is the library for matrix products on the processor; shoal measures several and chooses one for
its runners. `shoal up` writes a file that says whether the last measurement had trouble. If so, the
child measures again when the node has been idle for a while. The child runs only on cores that no
other program wants, and it is killed when work arrives. Each further try waits longer. The next
runners start with the new choice (`bus.process.zygote`).

The libraries that runners preload are in /tmp. Many systems delete old files there. So this module
gives the files a new date once an hour, and the child replaces missing ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from bus.process.logs import Log
from bus.wire.messages.control import SlotHello
from worker.machine.awake import has_work


@dataclass(frozen=True, slots=True)
class RepeatTiming:
    """A try begins after `idle_s` without work, and takes at most `deadline_s`. The first pause
    between two tries is `pause_s`; each is twice as long as the last, up to `most_pause_s`."""

    idle_s: float = 30.0
    pause_s: float = 60.0
    most_pause_s: float = 600.0
    deadline_s: float = 60.0
    refresh_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class RunnerBlas:
    """The content of the file with the runners' environment variables, and whether its measurement
    must be repeated."""

    variables: object = None
    repeats: bool = False
    files: tuple[str, ...] = ()


def runner_blas(file: Path) -> RunnerBlas:
    """Return the content of the file with the runners' environment variables; nothing if it cannot
    be read."""
    with suppress(OSError, ValueError):
        content = cast(dict[str, Any], json.loads(file.read_bytes()))
        files = tuple(map(str, content.get("files", ())))
        return RunnerBlas(content.get("variables"), bool(content.get("repeats")), files)
    return RunnerBlas()


class BlasRepeats:
    """Starts and ends the child. `command` measures again; empty: nothing is ever repeated."""

    def __init__(
        self, file: Path, command: Sequence[str], log: Log, timing: RepeatTiming | None = None
    ) -> None:
        self._file, self._command, self._log = file, command, log
        self._timing = timing or RepeatTiming()
        self._blas = runner_blas(file) if command else RunnerBlas()
        self._steps: dict[str, int] = {}
        self._busy_at: float | None = None
        self._next_at = self._refresh_at = self._began_at = 0.0
        self._pause_s = self._timing.pause_s
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def is_measuring(self) -> bool:
        """Return whether the child runs, or its result was not collected yet."""
        return self._child is not None

    def look(self, hellos: Sequence[SlotHello], now: float) -> bool:
        """Start the measuring child if a measurement is due and no runner has work; end the child
        if one has. Return whether new runners get other environment variables than before."""
        if not self._command:
            return False
        is_busy = any(has_work(hello, self._steps.get(hello.boot)) for hello in hellos)
        self._steps = {hello.boot: hello.step for hello in hellos}
        if is_busy or self._busy_at is None:
            self._busy_at = now
        if self._child is not None:
            return self._watch(self._child, is_busy, now)
        self._refresh(now)
        if (
            self._blas.repeats
            and now - self._busy_at >= self._timing.idle_s
            and now >= self._next_at
        ):
            self._begin(now)
        return False

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._kill(self._child)

    def _begin(self, now: float) -> None:
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._command = ()
            self._log.warning("cannot measure BLAS again", error=str(error))
            return
        self._began_at = now
        self._log.info("measures BLAS again, while the node is idle")

    def _watch(self, child: subprocess.Popen[bytes], is_busy: bool, now: float) -> bool:
        """Collect the result of the child, or end it if there is work or its time is over."""
        is_late = now - self._began_at > self._timing.deadline_s
        if child.poll() is None and not is_busy and not is_late:
            return False
        ended, output = child.returncode is not None, b""
        if ended and child.stdout is not None:
            output = child.stdout.read(2000)
        self._kill(child)
        before, self._blas = self._blas, runner_blas(self._file)
        if self._blas.repeats:
            self._next_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, self._timing.most_pause_s)
        why = "" if ended else "work arrived" if is_busy else "it took too long"
        text = output.decode(errors="replace").strip()
        self._log.info("measured BLAS again", choice=text, stopped=why, repeats=self._blas.repeats)
        return before.variables != self._blas.variables

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        self._child = None

    def _refresh(self, now: float) -> None:
        """Give the preloaded files a new date. If one is missing, let the child make it."""
        if now < self._refresh_at:
            return
        self._refresh_at = now + self._timing.refresh_s
        for file in self._blas.files:
            try:
                os.utime(file)
            except FileNotFoundError:
                self._log.warning("a library that runners preload is missing", file=file)
                self._blas = replace(self._blas, repeats=True)
            except OSError as error:
                self._log.warning("cannot keep a preloaded library", file=file, error=str(error))
