"""Talks to the operating system: starts a program of `engines.toml`, and ends it.

The program is a child of `runner.command.guard`, which ends it when the runner closes a pipe or
dies. Only the last lines of its output are kept.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import psutil

from bus.models.tasks import CommandEngine
from bus.process.installation import Environment
from bus.wire.accelerators import IN_ORDER, VISIBLE
from runner.command import guard

KEPT_LINES, LINE_CHARACTERS = 30, 300
KILLED_S = 5.0
"""How long the program may take to end after SIGKILL."""
HOME = "SHOAL_HOME"
"""The variable by which `shoal down` finds the processes of a node."""
OUR_VARIABLES = ("SHOAL_", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES")
"""Beginnings of the environment variables of a runner that its program must not get: settings and
keys of shoal, and libraries that the runner loads for MLX."""
TROUBLE = ("error", "failed", "cannot", "exception", "no such", "not found", "invalid")
"""Words by which the line that says why the program ended is recognised."""


class EngineEnded(Exception):
    """The program ended by itself, or was killed by another process."""


class EngineProcess:
    """A running program, in the environment `venv` of packages if there is one. `port` is the port
    at which it must listen, `key` the API key that it may require."""

    def __init__(self, name: str, engine: CommandEngine, venv: Environment | None = None) -> None:
        """Start the program. Raises OSError."""
        self.port = free_port()
        self.key = secrets.token_urlsafe(24)
        self._name = name
        self._stop_s = engine.stop_s
        self._lines = deque[str](maxlen=KEPT_LINES)
        gpus = ",".join(map(str, engine.gpus))
        values = {
            "capacity": str(engine.capacity),
            "context": str(engine.context_tokens),
            "gpus": gpus,
            "key": self.key,
            "model": engine.model or name,
            "port": str(self.port),
        }
        words, more = engine.fill(values)
        given = environment(os.environ, gpus)
        number = signal.Signals[f"SIG{engine.stop_signal}"]
        guarding = [sys.executable, "-I", "-S", str(Path(guard.__file__))]
        self._process = subprocess.Popen(
            [*guarding, str(int(number)), str(engine.stop_s), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=given | more if venv is None else venv.variables(given, more),
            start_new_session=True,
        )
        self._drains = threading.Thread(target=self._drain, name="engine-output", daemon=True)
        self._drains.start()

    def check(self) -> None:
        """Raise EngineEnded if the program has ended."""
        code = self._process.poll()
        if code is None:
            return
        self._drains.join(1.0)
        how = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        words = self.words()
        raise EngineEnded(f"the engine {self._name} {how}{f': {words}' if words else ''}")

    def words(self) -> str:
        """Return the last line of its output that says what is wrong, else the last line; "" if
        there is none."""
        lines = [*self._lines]
        telling = [line for line in lines if any(word in line.lower() for word in TROUBLE)]
        chosen = (telling or lines)[-1:]
        return "".join(c if c.isprintable() else "?" for c in chosen[0]) if chosen else ""

    def listens(self) -> bool:
        """Return whether the program, or a child of it, listens at the port. True if the system
        does not say."""
        for process in self._family():
            try:
                connections = process.net_connections("tcp")
            except psutil.NoSuchProcess:
                continue
            except psutil.AccessDenied:
                return True
            for each in connections:
                if each.status == psutil.CONN_LISTEN and each.laddr.port == self.port:
                    return True
        return False

    def used_bytes(self) -> int:
        """Return the resident memory of the program and its children, in bytes."""
        total = 0
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def end(self) -> None:
        """End the program and its children. Returns when they are gone."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(self._stop_s + KILLED_S)
        except subprocess.TimeoutExpired:
            for process in self._family():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self._process.kill()
            self._process.wait(KILLED_S)

    def _family(self) -> list[psutil.Process]:
        """Return the program and all its children, without the guard."""
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.Error:
            return []

    def _drain(self) -> None:
        """Read the output until it ends; a full pipe would stop the program."""
        output = self._process.stdout
        assert output is not None, "the program was started without a pipe"
        with output:
            while line := output.readline(LINE_CHARACTERS):
                text = line.decode(errors="replace").strip()
                if text:
                    self._lines.append(text)


def environment(variables: Mapping[str, str], gpus: str) -> dict[str, str]:
    """Return the environment of a program, from that of the runner. `gpus`: the numbers of the GPUs
    that it may use; "": any."""
    others = {
        name: value
        for name, value in variables.items()
        if name == HOME or not name.startswith(OUR_VARIABLES)
    }
    named = {**dict.fromkeys(VISIBLE.values(), gpus), **IN_ORDER} if gpus else {}
    return {**others, **named}


def free_port() -> int:
    """Return a TCP port of this machine that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
