"""Processes that are forked from one that has imported their program, for tests: see `fork_server`.

A server is started at its first use in a process of tests, and ends with that, as all of its forks
do. A fork is like a process of its own only where the interpreter would start alike: ask
`starts_like` first.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVER = Path(__file__).with_name("fork_server.py")
STARTS = (
    "PYTHON",
    "LC_",
    "LANG",
    "LD_",
    "DYLD_",
    "MALLOC_",
    "OPENSSL_",
    "OPENBLAS_",
    "OMP_",
    "MKL_",
)
"""What the names of variables begin with that an interpreter or a C library reads at its start."""
PYTEST = "PYTEST_"
OURS = ("SHOAL", PYTEST)
"""What the names of variables begin with that a server does without: shoal's say what one program
is to do, pytest's which test runs now. An import that copies the whole environment reads the latter
too; without this only the first test of a process would fork."""


class Fork:
    """A forked process, with as much of `subprocess.Popen` as tests use."""

    def __init__(self, reply: socket.socket) -> None:
        self.returncode: int | None = None
        self._reply, self._told = reply, b""
        self._turn = threading.Lock()
        while b"\n" not in self._told:
            data = reply.recv(64)
            assert data, "the server of forks ended"
            self._told += data
        line, _, self._told = self._told.partition(b"\n")
        self.pid = int(line)

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, to a process that has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _look(self, timeout: float | None) -> int | None:
        with self._turn:
            if self.returncode is None:
                self._reply.settimeout(timeout)
                with contextlib.suppress(TimeoutError, BlockingIOError):
                    while not self._told.endswith(b"\n"):
                        data = self._reply.recv(64)
                        assert data, "the server of forks ended"
                        self._told += data
                    self.returncode = int(self._told)
                    self._reply.close()
            return self.returncode


class ForkServer:
    """The server of some modules in this process."""

    def __init__(
        self, modules: Sequence[str], tree: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self._env = {**own, **(variables or {}), "PYTHONPATH": str(tree)}
        self._control, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", SERVER.read_text(), str(its.fileno()), *modules],
                pass_fds=[its.fileno()],
                cwd=tempfile.gettempdir(),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        with self._control.makefile("rb") as told:
            line = told.readline()
        assert line, f"the server of forks ended: {self._process.wait()}"
        self._read: list[str] = json.loads(line)
        self._turn = threading.Lock()
        self.pid = self._process.pid
        self._owner = os.getpid()
        atexit.register(self._close)

    def starts_like(self, env: Mapping[str, str]) -> bool:
        """Whether an interpreter that starts with `env` would be like the server."""
        begun = {name for name in {*env, *self._env} if name.startswith(STARTS)}
        names = {name for name in {*begun, *self._read} if not name.startswith(PYTEST)}
        return all(env.get(name) == self._env.get(name) for name in names)

    def start(
        self,
        run: str,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | Path,
        streams: tuple[int, int, int],
    ) -> Fork:
        """Fork, with these descriptors as standard streams, which stay open here."""
        order = {"run": run, "words": list(words), "cwd": str(cwd), "env": dict(env)}
        asked = json.dumps(order).encode()
        reply, its = socket.socketpair()
        with its, self._turn:
            length = len(asked).to_bytes(4, "big")
            socket.send_fds(self._control, [length], [*streams, its.fileno()])
            self._control.sendall(asked)
        return Fork(reply)

    def _close(self) -> None:
        if os.getpid() == self._owner:
            self._control.close()
            self._process.wait()


_starting = threading.Lock()
_servers: dict[tuple[object, ...], ForkServer] = {}


def server(
    modules: Sequence[str], tree: Path, variables: Mapping[str, str] | None = None
) -> ForkServer:
    """Return the server of these modules of `tree`, with these variables, in this process. It is
    started at its first use."""
    key = (os.getpid(), tree, *modules, *sorted((variables or {}).items()))
    with _starting:
        if key not in _servers:
            _servers[key] = ForkServer(modules, tree, variables)
        return _servers[key]


def started(
    modules: Sequence[str],
    tree: Path,
    run: str,
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | Path,
    streams: tuple[int, int, int],
    variables: Mapping[str, str] | None = None,
) -> Fork | subprocess.Popen[bytes]:
    """Run `module:function`, forked from the server of these modules, with these variables, where
    that makes no difference, and as `python -m module` otherwise."""
    server_of = server(modules, tree, variables)
    if server_of.starts_like(env):
        return server_of.start(run, words, env=env, cwd=cwd, streams=streams)
    stdin, stdout, stderr = streams
    command = [sys.executable, "-P", "-m", run.partition(":")[0], *words]
    return subprocess.Popen(command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)


def end_by(run: Fork, ends_at: float) -> bool:
    """Wait until a fork has ended; kill it at `ends_at`. Return whether it ended in time."""
    try:
        run.wait(max(0.0, ends_at - time.monotonic()))
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait()
        return False
    return True
