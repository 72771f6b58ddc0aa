"""Talks to the engine: one thread loads it and makes every call of it, for life.

MLX's arrays and streams belong to the thread that made them, so loading, steps and exchanges
between ranks share one. What is done in the thread is an `EngineLoop`'s, one per role. An
exception is told and ends the thread; nothing is retried.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bus.process.tools import in_words
from runner.engine import EngineStatus


class EngineLoop(Protocol):
    """What a role has its engine do. `load` and then `run` are called once, in the thread, which
    writes where it stands to `status`."""

    status: EngineStatus

    def load(self) -> None:
        """Load the engine, or meet the other ranks. Raises where that fails."""
        ...

    def run(self) -> None:
        """Compute until `stop` was called or all is done. Raises where the engine does."""
        ...

    def stop(self) -> None:
        """Have `run` return after its step. Called from the main thread; does not wait."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """`EngineLoop.load` has returned; `run` begins."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """`EngineLoop.load` raised; the thread has ended. `story` is the traceback, for the log.
    `imports`: whether the libraries could be imported; where not, no model loads here."""

    message: str
    story: str = field(default="", compare=False)
    imports: bool = True


@dataclass(frozen=True, slots=True)
class Broken:
    """`EngineLoop.run` raised; the thread has ended. `cause` is the error's own text, `message`
    has its type before it, `story` is the traceback, for the log."""

    message: str
    cause: str
    story: str


ThreadNews = Loaded | LoadFailed | Broken


class ModelThread:
    """Start it once; `post` is called from it and must not wait."""

    def __init__(self, loop: EngineLoop, post: Callable[[ThreadNews], None]) -> None:
        self._loop = loop
        self._post = post
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Have the loop end after its step; return False when it did not within `timeout_s`."""
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
            self._post(LoadFailed(_said(error), traceback.format_exc(), imports))
            return
        self._post(Loaded())
        try:
            self._loop.run()
        except Exception as error:
            message = f"{type(error).__name__}: {in_words(str(error))}"
            self._post(Broken(message, _said(error), traceback.format_exc()))


def _said(error: Exception) -> str:
    return in_words(str(error)) or type(error).__name__
