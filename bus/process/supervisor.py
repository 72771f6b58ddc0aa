"""Talks to supervisord over its unix socket (XML-RPC): list, start, stop, signal.

Every call has a deadline. Starting a running process or stopping a stopped one is no error: the
call returns False. Faults raise `ProcessRefused` with their reason; an unreachable supervisord
raises `Unavailable`. Calls block for some milliseconds (start without waiting 5 ms, list 3 ms), so
a service may make them in its loop. `stop` waits for the end of the process and belongs in a thread
of its own.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# (supervisor carries no type information)
from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import xmlrpc.client
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from supervisor.xmlrpc import Faults, SupervisorTransport

from bus.wire.errors import ShoalError, Unavailable

Status = Literal[
    "stopped", "starting", "running", "backoff", "stopping", "exited", "fatal", "unknown"
]
Reason = Literal["unknown_name", "shutting_down", "spawn_failed", "not_running", "failed"]
Signal = Literal["TERM", "KILL", "INT", "HUP", "USR1", "USR2", "STOP", "CONT"]

CALL_DEADLINE_S = 5.0
STOP_DEADLINE_S = 30.0
ALIVE: frozenset[Status] = frozenset({"starting", "running", "stopping"})

_STATUS: dict[int, Status] = {
    0: "stopped",
    10: "starting",
    20: "running",
    30: "backoff",
    40: "stopping",
    100: "exited",
    200: "fatal",
}
_REASON: dict[int, Reason] = {
    Faults.BAD_NAME: "unknown_name",
    Faults.SHUTDOWN_STATE: "shutting_down",
    Faults.SPAWN_ERROR: "spawn_failed",
    Faults.ABNORMAL_TERMINATION: "spawn_failed",
    Faults.NO_FILE: "spawn_failed",
    Faults.NOT_EXECUTABLE: "spawn_failed",
    Faults.NOT_RUNNING: "not_running",
}


@dataclass(frozen=True, slots=True)
class SupervisedProcess:
    """One entry of supervisord. `name` is `bus` or `runner:03`; `pid` is 0 if it does not run.

    Times are seconds since the epoch, 0 for never. `exit_code` is that of the last run (-1: killed
    by a signal); None while the process runs or if it has never run.
    """

    name: str
    status: Status
    pid: int
    started_at_s: int
    stopped_at_s: int
    exit_code: int | None
    description: str
    log_path: str

    @property
    def alive(self) -> bool:
        """Return whether there is a process, or one is starting."""
        return self.status in ALIVE


class ProcessRefused(ShoalError):
    """supervisord refused a call. `reason` says why; the error's text is supervisord's own."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, deadline_s: float) -> None:
        super().__init__("localhost", timeout=deadline_s)
        self._path = path

    def connect(self) -> None:
        """Connect to supervisord's unix socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Supervisor:
    """supervisord at its unix socket. It serves calls of several threads one by one."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._turn = threading.Lock()

    def list_processes(self) -> list[SupervisedProcess]:
        """Return all processes that supervisord knows, running or not, in its own order."""
        rows = self._call(lambda rpc: rpc.supervisor.getAllProcessInfo())
        return [_process(cast(dict[str, Any], row)) for row in rows]

    def is_up(self) -> bool:
        """Return whether supervisord answers."""
        try:
            self._call(lambda rpc: rpc.supervisor.getState(), deadline_s=2.0)
        except (Unavailable, ProcessRefused):
            return False
        return True

    def pid(self) -> int:
        """Return supervisord's own process id."""
        return int(self._call(lambda rpc: rpc.supervisor.getPID()))

    def start(self, name: str) -> bool:
        """Start a process without waiting until it is up. False: it was already running."""
        return self._unless(
            Faults.ALREADY_STARTED, lambda rpc: rpc.supervisor.startProcess(_full_name(name), False)
        )

    def stop(self, name: str, *, wait: bool = True) -> bool:
        """Send SIGTERM, then SIGKILL after its `stopwaitsecs`. False: it was not running."""
        return self._unless(
            Faults.NOT_RUNNING,
            lambda rpc: rpc.supervisor.stopProcess(_full_name(name), wait),
            deadline_s=STOP_DEADLINE_S if wait else CALL_DEADLINE_S,
        )

    def signal(self, name: str, signal: Signal) -> bool:
        """Send a signal to the process itself. False: it is not running."""
        return self._unless(
            Faults.NOT_RUNNING, lambda rpc: rpc.supervisor.signalProcess(_full_name(name), signal)
        )

    def last_words(self, name: str, length_bytes: int = 2_000) -> str:
        """Return the end of a process's log; "" if there is none."""
        try:
            answer = self._call(
                lambda rpc: rpc.supervisor.tailProcessStdoutLog(_full_name(name), 0, length_bytes)
            )
        except ProcessRefused:
            return ""
        return str(answer[0])

    def shutdown(self, *, first: Sequence[str] = ("master", "gateway")) -> None:
        """Stop the processes `first`, one after the other, so that the leader hands over at once
        and open requests get an error. Then stop all other processes together, then supervisord
        itself. Return when supervisord has agreed to end. (By itself it would stop all processes
        one after the other.)"""
        for name in first:
            with contextlib.suppress(ProcessRefused):
                self.stop(name)
        self._call(lambda rpc: rpc.supervisor.stopAllProcesses(False))
        self._call(lambda rpc: rpc.supervisor.shutdown())

    def _unless(
        self, fault: int, call: Callable[[Any], Any], *, deadline_s: float = CALL_DEADLINE_S
    ) -> bool:
        try:
            self._call(call, deadline_s=deadline_s, but=fault)
        except _AlreadySo:
            return False
        return True

    def _call(
        self,
        call: Callable[[Any], Any],
        *,
        deadline_s: float = CALL_DEADLINE_S,
        but: int | None = None,
    ) -> Any:
        transport = SupervisorTransport(None, None, f"unix://{self._path}")
        cast(Any, transport)._get_connection = lambda: _Connection(self._path, deadline_s)
        rpc = xmlrpc.client.ServerProxy("http://localhost", transport=cast(Any, transport))
        with self._turn:
            try:
                return call(rpc)
            except xmlrpc.client.Fault as fault:
                if fault.faultCode == but:
                    raise _AlreadySo from None
                reason = _REASON.get(fault.faultCode, "failed")
                raise ProcessRefused(reason, f"supervisord: {fault.faultString}") from None
            except TimeoutError as error:
                raise Unavailable(
                    f"supervisord at {self._path} did not answer within {deadline_s:g} s"
                ) from error
            except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
                raise Unavailable(f"supervisord at {self._path}: {error}") from error
            finally:
                transport.close()


class _AlreadySo(Exception):
    """supervisord refused a call because the process is already in the requested state."""


def _full_name(name: str) -> str:
    return name if ":" in name else f"{name}:{name}"


def _process(row: dict[str, Any]) -> SupervisedProcess:
    group, name = str(row["group"]), str(row["name"])
    status = _STATUS.get(int(row["state"]), "unknown")
    ran = int(row["stop"]) > 0 and status not in ALIVE
    return SupervisedProcess(
        name=name if group == name else f"{group}:{name}",
        status=status,
        pid=int(row["pid"]),
        started_at_s=int(row["start"]),
        stopped_at_s=int(row["stop"]),
        exit_code=int(row["exitstatus"]) if ran else None,
        description=str(row["description"]),
        log_path=str(row["logfile"]),
    )
