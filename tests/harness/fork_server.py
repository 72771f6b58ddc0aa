"""A process that has imported a program and forks for each run of it.

`forks.py` starts it with `python -P -c <this text> DESCRIPTOR MODULES...`, so that a run finds the
same `sys.path` and `__main__` as a command of its own. The descriptor is a stream socket. A module
that ends in `.*` stands for all modules of a package.

The server first sends a line of JSON: the environment variables that the imports read. A request is
4 bytes of length, then JSON: `run` ("module:function"), `words`, `cwd`, `env`. With the length come
4 descriptors: standard input, output, errors, and a socket for the reply, which is a line with the
pid, and a line with the exit code at the end. The server kills a run when the other end of that
socket is shut. It ends, with all runs, when the stream ends.

It must import nothing of the tests itself, and start no thread.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any

HIGHEST_DESCRIPTOR = 4096


def imported(modules: Iterable[str]) -> list[str]:
    """Import modules; return the environment variables read meanwhile."""
    names: set[str] = set()
    kind = type(os.environ)
    read = kind.__getitem__

    def noted(self: Any, name: str) -> Any:
        names.add(name)
        return read(self, name)

    kind.__getitem__ = noted
    try:
        for name in modules:
            module = importlib.import_module(name.removesuffix(".*"))
            if name.endswith(".*"):
                for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
                    importlib.import_module(found.name)
    finally:
        kind.__getitem__ = read
    return sorted(names)


class Server:
    """The loop of the server; `serve` returns in each fork, and nowhere else."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._interrupt = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._runs: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def serve(self) -> str:
        """Fork for each request. Returns in the fork, which is then like a new process: what it is
        to run."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    run = self._forked()
                    if run:
                        return run
                elif descriptor == self._woken.fileno():
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                else:
                    self._poll.unregister(descriptor)
                    self._kill(descriptor)
            self._reap()

    def _forked(self) -> str:
        """Take a request and fork; return what is to run where this is the fork."""
        length, descriptors, _, _ = socket.recv_fds(self._control, 4, 4)
        if len(length) < 4:
            for pid in self._runs:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        asked = json.loads(self._exactly(int.from_bytes(length, "big")))
        *streams, reply = descriptors
        pid = os.fork()
        if pid == 0:
            self._become(asked, streams)
            return asked["run"]
        for descriptor in streams:
            os.close(descriptor)
        self._runs[pid] = socket.socket(fileno=reply)
        self._poll.register(reply, select.POLLIN)
        self._tell(self._runs[pid], pid)
        return ""

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self._control.recv(count - len(data))
        return data

    def _become(self, asked: dict[str, Any], streams: list[int]) -> None:
        """Make the fork what a new interpreter would be."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, self._interrupt)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        for one in (self._control, self._woken, self._waker, *self._runs.values()):
            one.detach()
        os.closerange(3, HIGHEST_DESCRIPTOR)
        if "setproctitle" in sys.modules:
            # It finds where the title lies only while the environment is the first one.
            sys.modules["setproctitle"].getproctitle()
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.argv[1:] = asked["words"]

    def _kill(self, reply: int) -> None:
        for pid, one in self._runs.items():
            if one.fileno() == reply:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for pid in list(self._runs):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            reply = self._runs.pop(pid)
            with contextlib.suppress(KeyError):
                self._poll.unregister(reply)
            self._tell(reply, os.waitstatus_to_exitcode(status))
            reply.close()

    def _tell(self, reply: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            reply.send(b"%d\n" % number)


def main() -> None:
    """Serve; in a fork, run what was asked for as an interpreter does."""
    _, descriptor, *modules = sys.argv
    control = socket.socket(fileno=int(descriptor))
    names = imported(modules)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    del sys.argv[1:]
    control.sendall(json.dumps(names).encode() + b"\n")
    module, _, function = Server(control).serve().partition(":")
    program = getattr(importlib.import_module(module), function)
    try:
        sys.exit(program())
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        leave(end.code or 0)


def leave(code: int) -> None:
    """End the fork as an interpreter ends, without freeing each object: that takes longer than a
    short command itself. Raises where output cannot be written, for the interpreter to say so."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
