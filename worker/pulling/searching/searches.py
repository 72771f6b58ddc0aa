"""Talks to processes that search, for the gateways of this node: one process for each question.

A thread waits for each, so that the worker's loop never does; a process that takes too long is
ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from pydantic import ValidationError

from bus.wire.messages.gateways import AskSearch, SearchFound, SearchRefused
from bus.wire.messages.wire import Message
from worker.pulling.processes import QUIET

AT_ONCE = 2
MOST_WAITING = 8
WHOLE_S = 60.0
"""A search takes no longer than this, with its turn not counted."""
COMMAND = (sys.executable, "-P", "-m", "worker.pulling.searching")


class Searches:
    """The searches of this node. `answer` tells an asker what was found; `offline`: no hub is asked
    for anything. `tick` is called by the worker."""

    def __init__(self, answer: Callable[[bytes, Message], object], *, offline: bool) -> None:
        self._answer = answer
        self._offline = offline
        self._ended: SimpleQueue[tuple[bytes, Message]] = SimpleQueue()
        self._threads = ThreadPoolExecutor(AT_ONCE, "searching")
        self._running: set[subprocess.Popen[bytes]] = set()
        self._waiting = 0
        self._closed = False

    def ask(self, asked: AskSearch, asker: bytes) -> None:
        """Have the hub searched, and the asker answered once."""
        if self._offline:
            self._answer(asker, refused("offline", "offline = true: this node asks no hub"))
        elif self._waiting >= MOST_WAITING:
            self._answer(asker, refused("busy", f"{MOST_WAITING} searches wait on this node"))
        else:
            self._waiting += 1
            self._threads.submit(self._search, asked, asker)

    def tick(self) -> None:
        """Answer those whose searches have ended."""
        while not self._ended.empty():
            self._waiting -= 1
            self._answer(*self._ended.get())

    def close(self) -> None:
        """End what is under way."""
        self._closed = True
        for process in tuple(self._running):
            process.kill()
        self._threads.shutdown(cancel_futures=True)

    # --- in threads ---

    def _search(self, asked: AskSearch, asker: bytes) -> None:
        try:
            said = self._said(asked)
        except OSError as error:
            said = refused("broken", f"no process could be started to search: {error}")
        self._ended.put((asker, said))

    def _said(self, asked: AskSearch) -> Message:
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **QUIET}
        )
        self._running.add(process)
        try:
            if self._closed:
                process.kill()
            told, _ = process.communicate(asked.model_dump_json().encode() + b"\n", WHOLE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return refused("unreachable", f"the hub was searched for over {WHOLE_S:.0f} s")
        finally:
            self._running.discard(process)
        return _read(told)


def refused(reason: str, message: str) -> SearchRefused:
    """Return that nothing was found out, and why."""
    return SearchRefused.model_validate({"reason": reason, "message": message})


def _read(told: bytes) -> Message:
    """Return what a process said: it ended without a word where that is neither of the two."""
    for kind in (SearchFound, SearchRefused):
        try:
            return kind.model_validate_json(told)
        except ValidationError:
            continue
    return refused("broken", "the process that searched ended; see `shoal logs worker`")
