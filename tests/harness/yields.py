"""Threads that give way between lines: any other thread may run between any two lines of shoal.

`variables` has every process of a node do so: a `sitecustomize` of its own traces all threads and
lets go of the interpreter before many lines, drawn at random, of the packages under stress. What
two threads share is then written between two reads of it in minutes, not in weeks.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from tests.harness import yields\nyields.prepare()\n"
SWITCH_S = 1e-6
"""The interpreter's own switches between threads, which is 5 ms as a rule."""
SERVICES = ("runner", "worker", "telemetry", "gateway.http")
STRESSED = tuple(f"{ROOT / name}{os.sep}" for name in ("runner", "worker", "telemetry", "gateway"))
EVERY = 10
"""One of so many lines gives way, in the mean."""
PAUSES_S = (0.0, 0.0, 0.0, 0.003)
"""For how long a main thread, which reads what the others write: for a line of theirs, or a step.
The others let go and take the interpreter again."""


def variables(folder: Path) -> dict[str, str]:
    """What a node is started with; `folder` is to be there for as long as it runs."""
    (folder / "sitecustomize.py").write_text(PROGRAM)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def prepare() -> None:
    """Have the services give way: what is forked from a process that has imported them, and what
    begins on its own."""
    os.register_at_fork(after_in_child=install)
    if len(sys.orig_argv) > 3 and sys.orig_argv[3] in SERVICES:
        install()


def install() -> None:
    """Have the threads of this process give way from now on."""
    sys.setswitchinterval(SWITCH_S)
    threading.settrace(_called)
    sys.settrace(_called)


def _called(frame: FrameType, _event: str, _arg: Any) -> Any:
    """Trace the lines of functions under stress."""
    code = frame.f_code
    is_stressed = code.co_name != "<module>" and code.co_filename.startswith(STRESSED)
    return _Lines().line if is_stressed else None


class _Lines:
    """The lines of one call."""

    def __init__(self) -> None:
        self._left = random.randrange(EVERY)

    def line(self, _frame: FrameType, event: str, _arg: Any) -> Any:
        """Give way before one in so many."""
        if event == "line":
            self._left -= 1
            if self._left < 0:
                self._left = random.randrange(2 * EVERY)
                watches = threading.current_thread() is threading.main_thread()
                time.sleep(random.choice(PAUSES_S) if watches else 0.0)
        return self.line
