"""Talks to search processes, for the gateways of this node: one process per question.

A thread waits for each process, so that the worker's loop never waits. A process that takes too
long is killed.
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
"""Time limit of a search, without its time in the queue."""
COMMAND = (sys.executable, "-P", "-m", "worker.pulling.searching")


class Searches:
    """The searches of this node. `answer` sends a client the result; `offline`: no hub is
    contacted. The worker calls `tick`."""

    def __init__(self, answer: Callable[[bytes, Message], object], *, offline: bool) -> None:
        self._answer = answer
        self._offline = offline
        self._ended: SimpleQueue[tuple[bytes, Message]] = SimpleQueue()
        self._threads = ThreadPoolExecutor(AT_ONCE, "searching")
        self._running: set[subprocess.Popen[bytes]] = set()
        self._waiting = 0
        self._closed = False

    def ask(self, question: AskSearch, asker: bytes) -> None:
        """Start a search; the client gets one answer."""
        if self._offline:
            self._answer(
                asker, refused("offline", "offline = true: this node does not contact a hub")
            )
        elif self._waiting >= MOST_WAITING:
            self._answer(
                asker,
                refused("busy", f"too many searches: the limit of this node is {MOST_WAITING}"),
            )
        else:
            self._waiting += 1
            self._threads.submit(self._search, question, asker)

    def tick(self) -> None:
        """Answer the clients whose searches have ended."""
        while not self._ended.empty():
            self._waiting -= 1
            self._answer(*self._ended.get())

    def close(self) -> None:
        """End running searches."""
        self._closed = True
        for process in tuple(self._running):
            process.kill()
        self._threads.shutdown(cancel_futures=True)

    # --- in threads ---

    def _search(self, question: AskSearch, asker: bytes) -> None:
        try:
            answer = self._reply_to(question)
        except OSError as error:
            answer = refused("broken", f"cannot start a search process: {error}")
        self._ended.put((asker, answer))

    def _reply_to(self, question: AskSearch) -> Message:
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **QUIET}
        )
        self._running.add(process)
        try:
            if self._closed:
                process.kill()
            output, _ = process.communicate(question.model_dump_json().encode() + b"\n", WHOLE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return refused("unreachable", f"the search took more than {WHOLE_S:.0f} s")
        finally:
            self._running.discard(process)
        return _read(output)


def refused(reason: str, message: str) -> SearchRefused:
    return SearchRefused.model_validate({"reason": reason, "message": message})


def _read(output: bytes) -> Message:
    """Return a process's message; a failure if it ended without one."""
    for kind in (SearchFound, SearchRefused):
        try:
            return kind.model_validate_json(output)
        except ValidationError:
            continue
    return refused("broken", "the search process ended; see `shoal logs worker`")
