"""Talks to the pull processes: starts a process for each pull, reads its progress and ends it.

A thread waits for each process, so that the worker's loop never waits. A process ends when its
input ends, so none outlives its worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading

from pydantic import ValidationError

from bus.wire.messages.readings import PullState
from worker.pulling.order import GO, PullOrder

MAX_LINE_BYTES = 1 << 20
END_S = 5.0
QUIET = dict.fromkeys(
    ("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_PROGRESS_BARS"), "1"
)
"""Read by `huggingface_hub` on import: bytes come by HTTP, and no telemetry is sent."""


class PullProcess:
    """One process. `state` is its last message, `ended` whether it is the final one; both may be
    read from any thread."""

    def __init__(self, order: PullOrder) -> None:
        self.state: PullState | None = None
        self.ended = False
        self._order = order
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="pull", daemon=True)
        self._thread.start()

    def go(self) -> None:
        """Tell the process of a held pull, which waits after its forecast, to continue."""
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(GO)
                process.stdin.flush()

    def stop(self) -> None:
        """End the pull's process. The files received so far stay on the disk."""
        self._stopped.set()
        self._hang_up()

    def _run(self) -> None:
        try:
            self._listen()
        finally:
            self.ended = True

    def _listen(self) -> None:
        command = [sys.executable, "-P", "-m", "worker.pulling"]
        process = self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **QUIET}
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
                    self.state = PullState.model_validate_json(line)
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
