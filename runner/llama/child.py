"""Talks to the operating system: starts llama-server as a child, and ends it.

The child has a session of its own. The kernel sends it SIGKILL when the thread that started it
ends, so it does not outlive a runner that was killed. A small Python program asks for this signal
and then replaces itself by llama-server. Only the last lines of the output are kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from bus.process.memory import resident_bytes
from runner.llama.launch import LEAST_BUILD, Launch
from runner.llama.wire import LlamaTrouble

BECOME = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])"
)
"""The program that asks the kernel for SIGKILL at its parent's end and becomes llama-server."""
KEPT_LINES, LINE_CHARACTERS = 30, 300
ENDS_S, KILLED_S = 2.0, 5.0
"""How long the child may take to end after SIGTERM, and after SIGKILL."""
LAST_WORDS_S = 1.0
"""How long to wait for the output of a child that has ended."""
HINTS = (
    ("invalid argument", f"shoal needs build {LEAST_BUILD:,} or later of llama-server"),
    ("unknown argument", f"shoal needs build {LEAST_BUILD:,} or later of llama-server"),
    ("unknown model architecture", "a later llama-server may know it"),
    ("alloc", "use a smaller quantisation, or a shorter context"),
    ("temporarily unavailable", "a limit of the system is too low: memory, threads or processes"),
    ("error loading model", "download the file again, or use another quantisation"),
)
"""Words in llama-server's last message, and the remedy. The first pair whose words occur counts."""
TROUBLE = ("error", "failed", "unknown", "invalid", "unsupported", "cannot", "what()")
"""A line with one of these words probably says why llama-server ended."""
_PREFIX = re.compile(r"(?:[\d.]+ )?([DIWE]) (?=\S)")
"""The beginning of a line of llama-server's log: the time and the level."""


class ChildEnded(Exception):
    """llama-server ended by itself, or was killed by another process."""


class ChildKilled(ChildEnded):
    """A signal killed llama-server: another process sent it, or the system was out of memory."""


class Child:
    """A llama-server process. It ends at the latest with the thread that creates this object.
    `is_ready`: it has loaded the model."""

    def __init__(self, program: Sequence[str], launch: Launch) -> None:
        """Start the process. Raises OSError; LlamaTrouble if its socket cannot be made."""
        self.is_ready = False
        self._socket = launch.socket
        self._lines = deque[str](maxlen=KEPT_LINES)
        try:
            self._socket.unlink(missing_ok=True)
        except OSError as error:
            why = f"{self._socket} is needed for a socket of llama-server: {error.strerror}"
            raise LlamaTrouble(f"{why}; delete it") from error
        become = [sys.executable, "-I", "-S", "-c", BECOME, str(os.getpid())]
        self._process = subprocess.Popen(
            [*become, *launch.command(program)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=launch.environment(os.environ),
            start_new_session=True,
        )
        self._output = threading.Thread(target=self._drain, name="llama-output", daemon=True)
        self._output.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise ChildEnded if the process has ended."""
        code = self._process.poll()
        if code is None:
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._output.join(LAST_WORDS_S)
        words = self._words()
        if hint := next((hint for text, hint in HINTS if text in words), ""):
            words += f"; {hint}"
        error = ChildKilled if code == -signal.SIGKILL else ChildEnded
        raise error(f"llama-server {how}{f': {words}' if words else ''}")

    def used_bytes(self) -> int:
        """Return the bytes of the process in memory, with the pages of its file; 0 if it ended."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0
        return resident_bytes(status) or 0

    def cpu_s(self) -> float:
        """Return the seconds of processor time that the process has used; 0 if it ended."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """End the process and delete its socket. Returns when it is gone."""
        for number, wait_s in ((signal.SIGTERM, ENDS_S), (signal.SIGKILL, KILLED_S)):
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(wait_s)
        with contextlib.suppress(OSError):
            self._socket.unlink()

    def kill(self) -> None:
        """Kill the process if it still runs, and delete its socket. May be called in any thread;
        does not wait."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._socket.unlink()

    def _drain(self) -> None:
        """Read the output until the process ends, because a full pipe would block the process."""
        output = self._process.stdout
        assert output is not None, "llama-server was started without a pipe"
        with output:
            while line := output.readline(LINE_CHARACTERS):
                text = line.decode(errors="replace").strip()
                if text:
                    self._lines.append(text)

    def _words(self) -> str:
        """Return the line of the output that best says why the process ended. After the load this
        is the last line with a word of `TROUBLE`, or nothing. During the load it is the first
        error, else such a line, else the last line."""
        lines = [*self._lines]
        errors = [line for line in lines if (m := _PREFIX.match(line)) and m[1] == "E"]
        errors = errors or [line for line in lines if "error loading" in line]
        telling = [line for line in lines if any(word in line.lower() for word in TROUBLE)]
        chosen = telling[-1:] if self.is_ready else errors[:1] or telling[-1:] or lines[-1:]
        text = _PREFIX.sub("", chosen[0], count=1) if chosen else ""
        return "".join(c if c.isprintable() else "?" for c in text)
