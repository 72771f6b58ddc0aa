"""Talks to the processes that pull: starts one for each pull, hears how far it is, ends it.

A thread waits for each; what it hears comes back in the worker's loop. A process whose input ends
is gone at once, so none outlives its worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pydantic import ValidationError

from bus.wire.messages.readings import PullState

if TYPE_CHECKING:
    from worker.pulling.order import PullOrder

MAX_LINE_BYTES = 64 << 10
END_S = 5.0
Post = Callable[[Callable[[], None]], None]


class PullProcess:
    """One process. `told` is called, in the loop's thread, with each state and, once, with None at
    the end. `post` runs a callback there."""

    def __init__(
        self, order: PullOrder, post: Post, told: Callable[[PullState | None], None]
    ) -> None:
        self._order = order
        self._post = post
        self._told = told
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="pull", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; what came so far stays. Nothing is told any more."""
        self._stopped.set()
        self._hang_up()

    def _run(self) -> None:
        try:
            self._listen()
        finally:
            self._tell(None)

    def _listen(self) -> None:
        command = [sys.executable, "-P", "-m", "worker.pulling"]
        process = self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None and process.stdout is not None
        with process.stdout:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(json.dumps(dataclasses.asdict(self._order)).encode() + b"\n")
                process.stdin.flush()
            if self._stopped.is_set():
                self._hang_up()
            while line := process.stdout.readline(MAX_LINE_BYTES):
                with contextlib.suppress(ValidationError):
                    self._tell(PullState.model_validate_json(line))
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._hang_up()

    def _hang_up(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()

    def _tell(self, state: PullState | None) -> None:
        if not self._stopped.is_set():
            self._post(partial(self._told, state))
