"""Talks to the engine: one thread loads it and makes all its calls.

MLX's arrays and streams belong to the thread that made them, so loading, steps and exchanges
between ranks share one thread. Each role has an `EngineLoop` that runs in it. An exception is
reported and ends the thread; nothing is retried.

A `Watchdog` detects that a thread of a runner takes too long for its next result; such a thread
owes the result. Time without a CPU core does not count (`bus.patience`). The watched thread writes
the time since which it has owed a result, and continues to run. So a value that the watchdog reads
may be outdated on the next line. Each field is therefore read once into a local name. A deadline
counts as passed only if the thread still owes the same result after the limit is computed.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bus.patience import OwedTime
from bus.process.tools import in_words
from runner.engine import EngineStatus


class EngineLoop(Protocol):
    """The engine work of a role. `load` and then `run` are called once, in the thread, which writes
    its progress to `status`."""

    status: EngineStatus

    def load(self) -> None:
        """Load the engine, or meet the other ranks. Raises on failure."""
        ...

    def run(self) -> None:
        """Compute until `stop` was called or the work is done. Raises the engine's errors."""
        ...

    def stop(self) -> None:
        """Make `run` return after the current step. Called from the main thread; does not wait for
        that."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """`EngineLoop.load` has returned; `run` begins."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """`EngineLoop.load` raised; the thread has ended. `story` is the traceback, for the log.
    `imports`: the libraries could be imported; if false, no model loads on this node."""

    message: str
    story: str = field(default="", compare=False)
    imports: bool = True


@dataclass(frozen=True, slots=True)
class Broken:
    """`EngineLoop.run` raised; the thread has ended. `cause` is the error's text, `message` has its
    type in front, `story` is the traceback, for the log."""

    message: str
    cause: str
    story: str


ThreadNews = Loaded | LoadFailed | Broken


class ModelThread:
    """The thread of an engine. Start it once; `post` is called from it and must not block."""

    def __init__(self, loop: EngineLoop, post: Callable[[ThreadNews], None]) -> None:
        self._loop = loop
        self._post = post
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Make the loop end after its current step; return False if it did not end within
        `timeout_s`."""
        self._loop.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._loop.load()
        except Exception as error:
            traceback.print_exc()
            imports = not isinstance(error, ImportError)
            self._post(LoadFailed(_in_words(error), traceback.format_exc(), imports))
            return
        self._post(Loaded())
        try:
            self._loop.run()
        except Exception as error:
            message = f"{type(error).__name__}: {in_words(str(error))}"
            self._post(Broken(message, _in_words(error), traceback.format_exc()))


class Watchdog:
    """Watches one thread from the main thread. `owes_since` returns the instant since which the
    thread owes a result; None if it owes none. `waited_s` returns the total time that the thread
    and its helper threads were ready without a core. Check it several times a second."""

    def __init__(
        self, owes_since: Callable[[], float | None], waited_s: Callable[[], float]
    ) -> None:
        self._owes_since = owes_since
        self._owed = OwedTime(waited_s)

    def passed(self, now: float, limit_s: Callable[[], float]) -> float | None:
        """Return the time limit in seconds if the thread has owed a result for longer, else None.
        Waiting for a core does not count. `limit_s` is called only while a result is owed."""
        since = self._owes_since()
        spent_s = self._owed.spent_s(now, since)
        if since is None:
            return None
        limit = limit_s()
        return limit if spent_s > limit and self._owes_since() == since else None


def _in_words(error: Exception) -> str:
    return in_words(str(error)) or type(error).__name__
