"""The command line for tests: as a command of its own, or as a fork of a process that has it.

A command costs a second of a processor, nearly all of it for imports; a fork a tenth. `forked`
falls back to a command wherever the fork could differ: for another tree, on another machine, or
when a variable differs that the interpreter or an import reads.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tests.harness.counts import count

ROOT = Path(__file__).resolve().parents[2]
TREE = Path(os.environ.get("INSPECTED_TREE", ROOT))
"""The checkout whose code the nodes run; another one when an older tree is inspected."""
CODE = "import sys; from gateway.cli.app import main; sys.exit(main())"
SERVER = Path(__file__).with_name("command_server.py")
STARTS = ("PYTHON", "LC_", "LANG", "LD_", "DYLD_", "MALLOC_", "OPENSSL_")
"""What the names of variables begin with that an interpreter or a C library reads at its start."""
PIPE_BYTES = 60_000
"""So much fits into a pipe that nobody reads yet."""
Done = subprocess.CompletedProcess[str]


def command(
    *words: str,
    env: Mapping[str, str],
    timeout: float,
    cwd: str | Path | None = None,
    say: str | None = None,
    inside: tuple[str, ...] = (),
    tree: Path = TREE,
) -> Done:
    """Run the command line of `tree` as a process of its own, on the machine that the words
    `inside` lead to. `say` is its standard input. Raises subprocess.TimeoutExpired."""
    count("calls")
    given = {"stdin": subprocess.DEVNULL} if say is None else {"input": say}
    return subprocess.run(
        [*inside, sys.executable, "-P", "-c", CODE, *words],
        cwd=cwd or tempfile.gettempdir(),
        env={**env, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **given,
    )


def forked(
    *words: str,
    env: Mapping[str, str],
    timeout: float,
    cwd: str | Path | None = None,
    say: str | None = None,
    inside: tuple[str, ...] = (),
    tree: Path = TREE,
) -> Done:
    """Run the command line as `command` does, forked where that makes no difference."""
    env = {**env, "PYTHONPATH": str(tree)}
    if not inside and tree == TREE and len(say or "") < PIPE_BYTES:
        forks = server()
        if forks.starts_like(env):
            return forks.run(words, env, str(cwd or tempfile.gettempdir()), say, timeout)
    return command(*words, env=env, timeout=timeout, cwd=cwd, say=say, inside=inside, tree=tree)


class Forks:
    """The server of this process, and the calls to it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        own = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL")}
        self._env = {**own, "PYTHONPATH": str(TREE)}
        self._control, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", SERVER.read_text(), str(its.fileno())],
                pass_fds=[its.fileno()],
                cwd=tempfile.gettempdir(),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        with self._control.makefile("rb") as told:
            line = told.readline()
        assert line, f"the server of the command line ended: {self._process.wait()}"
        self._read: list[str] = json.loads(line)
        self.server_pid = self._process.pid
        self._turn = threading.Lock()
        atexit.register(self._close)

    def starts_like(self, env: Mapping[str, str]) -> bool:
        """Whether an interpreter that starts with `env` would be like the server."""
        begun = {name for name in {*env, *self._env} if name.startswith(STARTS)}
        return all(env.get(name) == self._env.get(name) for name in {*begun, *self._read})

    def run(
        self,
        words: tuple[str, ...],
        env: Mapping[str, str],
        cwd: str,
        say: str | None,
        timeout: float,
    ) -> Done:
        """Run the command line in a fork. Raises subprocess.TimeoutExpired; the fork is killed."""
        count("calls")
        ends_at = time.monotonic() + timeout
        given = _input(say)
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        reply, its_reply = socket.socketpair()
        asked = json.dumps({"words": words, "cwd": cwd, "env": dict(env)}).encode()
        streams = [given, its_out, its_err, its_reply.fileno()]
        with self._turn:
            socket.send_fds(self._control, [len(asked).to_bytes(4, "big")], streams)
            self._control.sendall(asked)
        for descriptor in streams[:3]:
            os.close(descriptor)
        its_reply.close()
        with reply, open(out, "rb", 0) as output, open(err, "rb", 0) as errors:
            said, whole = _read([output.fileno(), errors.fileno()], ends_at)
            if whole:
                reply.settimeout(max(0.0, ends_at - time.monotonic()))
                try:
                    code = reply.recv(16)
                except TimeoutError:
                    whole = False
            if not whole:
                reply.shutdown(socket.SHUT_WR)
                reply.settimeout(None)
                reply.recv(16)
                raise subprocess.TimeoutExpired(words, timeout, said[0], said[1])
        assert code, "the server of the command line ended within a call"
        return subprocess.CompletedProcess(words, int(code), _text(said[0]), _text(said[1]))

    def _close(self) -> None:
        if os.getpid() == self.pid:
            self._control.close()
            self._process.wait()


_starting = threading.Lock()
_servers: list[Forks] = []


def server() -> Forks:
    """Return the server of this process, started at its first use."""
    with _starting:
        if not _servers or _servers[0].pid != os.getpid():
            _servers[:] = [Forks()]
        return _servers[0]


def _input(say: str | None) -> int:
    """Return a descriptor to read `say` from; of nothing, `/dev/null`."""
    if say is None:
        return os.open(os.devnull, os.O_RDONLY)
    ready, writer = os.pipe()
    os.write(writer, say.encode())
    os.close(writer)
    return ready


def _read(descriptors: list[int], ends_at: float) -> tuple[list[bytes], bool]:
    """Return what each descriptor gives until its end, and whether all ended in time."""
    said = dict.fromkeys(descriptors, b"")
    with selectors.DefaultSelector() as ready:
        for descriptor in descriptors:
            ready.register(descriptor, selectors.EVENT_READ)
        while ready.get_map():
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                return list(said.values()), False
            for key, _ in ready.select(left_s):
                data = os.read(key.fd, 65_536)
                said[key.fd] += data
                if not data:
                    ready.unregister(key.fd)
    return list(said.values()), True


def _text(data: bytes) -> str:
    return data.decode().replace("\r\n", "\n").replace("\r", "\n")
