"""Talks to a separate thread of this process, which runs slow disk work, one job at a time.

The result or exception of a job is delivered in the thread of the event loop. Closing interrupts
the running job and drops the others; nothing is delivered afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
Work = Callable[[Callable[[], bool]], Result]
"""A disk job. It gets a function that returns whether to stop, and calls it often."""
Post = Callable[[Callable[[], None]], None]
CLOSE_S = 5.0


class DiskThread:
    """A thread for disk work, named after that work. `post` makes the loop's thread call a
    function."""

    def __init__(self, name: str, post: Post) -> None:
        self._post = post
        self._queue: SimpleQueue[tuple[Work[Any], Callable[[Any], None]] | None] = SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, work: Work[Result], then: Callable[[Result | Exception], None]) -> None:
        """Queue a job; `then` gets its result or its exception."""
        self._queue.put((work, then))

    def close(self) -> None:
        """Interrupt the running job, and wait for the thread to end."""
        self._stopped.set()
        self._queue.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None and not self._stopped.is_set():
            work, then = job
            try:
                result: Any = work(self._stopped.is_set)
            except Exception as error:
                result = error
            if not self._stopped.is_set():
                self._post(partial(then, result))
