"""The command line on a terminal: what a user sees, and types."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

from tests.harness.nodes import CODE, TREE, Node

READ_S = 60.0


class Terminal:
    """`shoal` with these words on a terminal of its own. A block ends the process."""

    def __init__(self, node: Node, *words: str) -> None:
        self._screen, slave = pty.openpty()
        self.shown = ""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", CODE, *words],
            cwd=tempfile.gettempdir(),
            env={
                **os.environ,
                "PYTHONPATH": str(TREE),
                "NO_COLOR": "1",
                "TERM": "dumb",
                **node.env,
            },
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._screen)

    def write(self, text: str) -> None:
        """Type."""
        os.write(self._screen, text.encode())

    def read_to(self, text: str) -> str:
        """Read until the screen shows a text; return all that it showed, without line breaks."""
        gives_up_at = time.monotonic() + READ_S
        while text not in self._flat():
            left_s = gives_up_at - time.monotonic()
            assert left_s > 0 and self._read(left_s), f"{text!r} is not in {self._flat()!r}"
        return self._flat()

    def wait(self) -> int:
        """Read to the end; return the exit code."""
        gives_up_at = time.monotonic() + READ_S
        while self._read(gives_up_at - time.monotonic()):
            pass
        return self._process.wait(10)

    def _flat(self) -> str:
        return " ".join(self.shown.split())

    def _read(self, seconds: float) -> bool:
        if seconds <= 0 or not select.select([self._screen], [], [], seconds)[0]:
            return False
        part = b""
        with suppress(OSError):  # the other end was closed
            part = os.read(self._screen, 1 << 16)
        self.shown += part.decode(errors="replace")
        return bool(part)
