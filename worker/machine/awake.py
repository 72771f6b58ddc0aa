"""Talks to macOS's `caffeinate`: keeps the machine awake while a runner has work.

`caffeinate` runs from the first sign of work until a while after the last; it also ends with this
process (`-w`). On other systems this module does nothing. There the system's sleep settings decide,
and `shoal doctor` checks them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

from bus.process.logs import Log
from bus.wire.messages.control import SlotHello

LINGER_S = 60.0
"""`caffeinate` runs this long after the last work. That covers the pauses of a conversation, so it
is not started anew for each answer."""
CAFFEINATE = ("/usr/bin/caffeinate", "-i", "-w")
"""The command that prevents idle sleep until a process ends; the id of the process is appended."""


class KeepAwake:
    """Keeps the machine from sleeping, by running a program. `command` starts that program, with
    this process's id appended; if empty, there is no such program."""

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
        return self._held is not None and self._held.poll() is None

    def look(self, hellos: Iterable[SlotHello], now: float) -> None:
        """Start `caffeinate` if the last hello of a running slot shows work, and stop `caffeinate`
        `LINGER_S` after the last work. A hello is the report that each runner sends to the
        worker."""
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
        """Allow the machine to sleep."""
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
            self._log.warning("the machine may sleep while it serves", error=str(error))


def has_work(hello: SlotHello, step_before: int | None) -> bool:
    """Return whether a runner has work: it loads, has open requests, or computes steps for its
    lead."""
    if hello.phase in ("loading", "warming") or hello.open_requests:
        return True
    return step_before is not None and hello.step != step_before
