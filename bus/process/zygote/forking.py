"""Talks to supervisord: forks services from the loaded process, where supervisord would execute
their commands.

supervisord reaches the system through its options object; this module replaces that object's `fork`
and `execve`. It also opens supervisord's socket again if the cleanup of temporary folders removed
the socket's file, because without it a node can be neither seen nor stopped. Only the exact command
of a loaded package is forked. Everything else is executed as usual: a runner, a package whose code
has changed on disk, or a command whose environment needs a new interpreter.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUntypedBaseClass=false, reportUnknownVariableType=false
# (supervisor carries no type information)
from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from supervisor.options import ServerOptions
from supervisor.states import SupervisorStates

from bus.process.logs import Log
from bus.process.zygote.loaded import LoadedCode
from bus.process.zygote.overlay import overlaid
from bus.process.zygote.service import become, reset_signals

INTERPRETER = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
"""Variables that an interpreter, its loader or its C library reads when it starts."""
RUNNING: int = SupervisorStates.RUNNING
HEEDED = frozenset({"PYTHONUNBUFFERED"})
"""Interpreter variables that a forked service obeys, too."""


@dataclass(frozen=True, slots=True)
class ServiceStart:
    """How a command is started: by forking a child that runs `package`, or by `execve` if that is
    empty. `why` is a reason for the log."""

    package: str = ""
    why: str = ""


def way_of(
    argv: Sequence[str], env: Mapping[str, str], loaded: LoadedCode, *, threads: int
) -> ServiceStart:
    """Decide how to start a command from a process that has this number of threads."""
    package = argv[3] if list(argv[:3]) == [sys.executable, "-P", "-m"] and len(argv) == 4 else ""
    if package not in loaded.packages:
        return ServiceStart()
    if other := next((name for name in sorted({*env, *os.environ}) if _differs(name, env)), ""):
        return ServiceStart(why=f"{other} differs from supervisord's")
    if threads != 1:
        return ServiceStart(why=f"supervisord has {threads} threads")
    if changed := loaded.changed():
        return ServiceStart(why=f"{changed} has changed since supervisord started")
    return ServiceStart(package)


def _differs(name: str, env: Mapping[str, str]) -> bool:
    read = name.startswith(INTERPRETER) and name not in HEEDED
    return read and env.get(name) != os.environ.get(name)


class ForkingOptions(ServerOptions):
    """supervisord's options, changed so that the services of `loaded` are forked."""

    loaded: ClassVar[LoadedCode] = LoadedCode()
    _supervisord: Any = None
    _trouble = ""
    _mask: set[signal.Signals]
    _threads = 0

    def openhttpservers(self, supervisord: Any) -> None:
        """Open supervisord's socket, and store the argument of this call, so that `_reopen` can
        open the socket again."""
        self._supervisord = supervisord
        super().openhttpservers(supervisord)

    def get_signal(self) -> Any:
        """Return the next signal. supervisord calls this at least once a second, so this method
        also checks the socket's file."""
        self._reopen()
        return super().get_signal()

    def _reopen(self) -> None:
        """Open the socket again if its file is gone and its folder is not."""
        servers = cast(list[tuple[dict[str, str], Any]], self.httpservers)
        files = [config["file"] for config, _ in servers if "file" in config]
        gone = [file for file in files if not os.path.exists(file)]
        if self.mood < RUNNING or not gone:
            return
        if not all(os.path.isdir(os.path.dirname(file)) for file in gone):
            return  # telemetry makes it again: see `conf.paths`
        for _, server in servers:
            with contextlib.suppress(OSError, ValueError, KeyError):  # a second try
                self.poller.unregister_readable(server.fileno())
        try:
            self.close_httpservers()
            self.httpservers = self.make_http_servers(self._supervisord)
        except (OSError, ValueError) as error:
            if str(error) != self._trouble:
                self.logger.error(f"cannot open the socket again: {error}")
            self._trouble = str(error)
        else:
            self._trouble = ""
            self.logger.warn("the socket file was removed; opening it again")

    def fork(self) -> int:
        """Fork; the child has all signals blocked, so that it loses none before it is ready."""
        self._threads = len(os.listdir("/proc/self/task"))
        mask = self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # pyright: ignore
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def execve(self, filename: str, argv: list[str], env: dict[str, str]) -> Any:
        """Become the service of a command, or execute it. Runs in the child and never returns."""
        reset_signals(self._mask)
        way = way_of(argv, env, self.loaded, threads=self._threads)
        if way.package:
            become(way.package, argv, env)
        if way.why:
            Log(node="", process=argv[-1]).info("started by exec, not by a fork", why=way.why)
        return super().execve(filename, argv, overlaid(env))
