"""Talks to macOS's `caffeinate`: keeps the machine from sleeping while a runner here has work.

An assertion is held from the first sign of work until a while after the last; it ends with this
process in any case (`-w`). Elsewhere there is no such program, and nothing is done: there the
settings of the system decide, which `shoal doctor` looks at.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

from bus.process.logs import Log
from bus.wire.messages.control import SlotHello

LINGER_S = 60.0
"""The pauses of a conversation: an assertion that comes and goes with each answer helps little."""
CAFFEINATE = ("/usr/bin/caffeinate", "-i", "-w")
"""Against idle sleep, until the process of the number that follows is gone."""


class KeepAwake:
    """Whether the machine is held awake. `command` has this process's id put behind it; empty:
    there is no such program here."""

    def __init__(self, log: Log, command: Sequence[str] | None = None) -> None:
        if command is None:
            command = CAFFEINATE if sys.platform == "darwin" else ()
        self._command = command
        self._log = log
        self._steps: dict[str, int] = {}
        self._busy_at = -LINGER_S
        self._held: subprocess.Popen[bytes] | None = None

    @property
    def is_held(self) -> bool:
        """Return whether the assertion stands."""
        return self._held is not None and self._held.poll() is None

    def look(self, hellos: Iterable[SlotHello], now: float) -> None:
        """Hold the machine awake, or let it go, by what the living slots said last."""
        if not self._command:
            return
        steps: dict[str, int] = {}
        for hello in hellos:
            steps[hello.boot] = hello.step
            if has_work(hello, self._steps.get(hello.boot)):
                self._busy_at = now
        self._steps = steps
        if now - self._busy_at >= LINGER_S:
            self.release()
        elif not self.is_held:
            self._hold()

    def release(self) -> None:
        """Let the machine sleep again when it likes."""
        if self._held is not None:
            self._held.terminate()
            self._held.wait()
            self._held = None

    def _hold(self) -> None:
        try:
            self._held = subprocess.Popen(
                [*self._command, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            self._command = ()
            self._log.warning("the machine may sleep while it answers", error=str(error))


def has_work(hello: SlotHello, step_before: int | None) -> bool:
    """Return whether a runner has work: it loads, owes answers, or computes for its lead."""
    if hello.phase in ("loading", "warming") or hello.open_requests:
        return True
    return step_before is not None and hello.step != step_before
