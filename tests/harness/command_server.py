"""A process that has imported the command line and forks for each call of it.

`commands.py` starts it with `python -P -c <this text> <descriptor>`, so that a call finds the same
`sys.path` and `__main__` as a command of its own. The descriptor is a stream socket.

The server first sends a line of JSON: the environment variables that the imports read. A request is
4 bytes of length, then JSON (`words`, `cwd`, `env`). With the length come 4 descriptors: standard
input, output, errors, and a socket for the reply, which is the exit code as text. The server kills
a call when the other end of that socket is shut. It ends, with all calls, when the stream ends.

It must import nothing of the tests, and start no thread.
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
from typing import Any

HIGHEST_DESCRIPTOR = 4096


def imported() -> list[str]:
    """Import the command line with all verbs; return the environment variables read meanwhile."""
    names: set[str] = set()
    kind = type(os.environ)
    read = kind.__getitem__

    def noted(self: Any, name: str) -> Any:
        names.add(name)
        return read(self, name)

    kind.__getitem__ = noted
    try:
        import gateway.cli.app

        for module in pkgutil.walk_packages(gateway.cli.__path__, "gateway.cli."):
            importlib.import_module(module.name)
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
        self._calls: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def serve(self) -> None:
        """Fork for each request. Returns in the fork, which is then like a new process."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    if self._forked():
                        return
                elif descriptor == self._woken.fileno():
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                else:
                    self._poll.unregister(descriptor)
                    self._kill(descriptor)
            self._reap()

    def _forked(self) -> bool:
        """Take a request and fork; return whether this is the fork."""
        length, descriptors, _, _ = socket.recv_fds(self._control, 4, 4)
        if len(length) < 4:
            for pid in self._calls:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        asked = json.loads(self._exactly(int.from_bytes(length, "big")))
        *streams, reply = descriptors
        pid = os.fork()
        if pid == 0:
            self._become(asked, streams)
            return True
        for descriptor in streams:
            os.close(descriptor)
        self._calls[pid] = socket.socket(fileno=reply)
        self._poll.register(reply, select.POLLIN)
        return False

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
        for one in (self._control, self._woken, self._waker, *self._calls.values()):
            one.detach()
        os.closerange(3, HIGHEST_DESCRIPTOR)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.argv[1:] = asked["words"]

    def _kill(self, reply: int) -> None:
        for pid, one in self._calls.items():
            if one.fileno() == reply:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for pid in list(self._calls):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            reply = self._calls.pop(pid)
            with contextlib.suppress(KeyError):
                self._poll.unregister(reply)
            with contextlib.suppress(OSError), reply:
                reply.send(str(os.waitstatus_to_exitcode(status)).encode())


def main() -> None:
    """Serve; in a fork, run the command line as the console script does."""
    control = socket.socket(fileno=int(sys.argv[1]))
    names = imported()
    gc.freeze()
    control.sendall(json.dumps(names).encode() + b"\n")
    Server(control).serve()
    from gateway.cli.app import main as command

    try:
        sys.exit(command())
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        leave(end.code or 0)


def leave(code: int) -> None:
    """End the fork as an interpreter ends, without freeing each object: that takes longer than the
    command itself. Returns where output cannot be written, for the interpreter to say so."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
