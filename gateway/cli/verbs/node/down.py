"""Talks to supervisord and the system: `shoal down` ends every process of this home.

supervisord first stops its processes, each within its own grace period. Processes that still run
then get SIGTERM and, 5 s later, SIGKILL. `down` also works if supervisord was killed, because
processes are found by their locks. Sockets, locks and pid files are deleted last.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from bus.process.supervisor import Supervisor
from bus.wire.errors import ShoalError
from conf.paths import Paths
from gateway.cli.command import Invocation
from gateway.cli.node import processes
from gateway.cli.node.processes import Leftover
from gateway.cli.output.errors import CliError
from gateway.cli.output.terminal import Output

ORDERLY_S = 60.0
TERM_S = 5.0
KILL_S = 5.0
LOOK_S = 0.1


@dataclass(slots=True)
class DownReport:
    """The result of `down`: the processes that needed a signal, and the time that `down` took."""

    orderly: bool = False
    terminated: list[str] = field(default_factory=list[str])
    killed: list[str] = field(default_factory=list[str])
    took_s: float = 0.0


def down(invocation: Invocation) -> None:
    """Stop the node: end every process of its home, and delete their sockets and locks."""
    settings, output = invocation.settings(), invocation.output
    supervisor = Supervisor(settings.endpoints.supervisor)
    ran = supervisor.is_up() or bool(processes.leftovers(settings.paths))
    with processes.alone(settings.paths):
        ended = bring_down(settings.paths, supervisor, output)
    facts = {**asdict(ended), "took_s": round(ended.took_s, 2)}
    output.document({"status": "stopped" if ran else "was not running", **facts})
    if not ran:
        output.say(f"no node runs in {settings.paths.home}")
        return
    output.say(f"{settings.node_name} is down ({ended.took_s:.1f} s)")
    if ended.killed:
        output.note(f"killed: {', '.join(ended.killed)}")


def bring_down(paths: Paths, supervisor: Supervisor, output: Output) -> DownReport:
    """Stop all processes of the home and delete their files. Raises CliError if a process does not
    end."""
    ended, began = DownReport(), time.monotonic()
    before = processes.leftovers(paths)
    if supervisor.is_up():
        output.detail("supervisord stops its processes")
        try:
            supervisor.shutdown()
            ended.orderly = until(ORDERLY_S, lambda: not _running(paths, before))
        except ShoalError as error:
            output.note(f"supervisord refused: {error}")
    left = _running(paths, before)
    if left:
        ended.terminated = list(map(str, left))
        output.detail(f"SIGTERM to {', '.join(ended.terminated)}")
        processes.signal_all(left, signal.SIGTERM)
        until(TERM_S, lambda: not _running(paths, before))
    left = _running(paths, before)
    if left:
        ended.killed = list(map(str, left))
        processes.signal_all(left, signal.SIGKILL)
        until(KILL_S, lambda: not _running(paths, before))
    left = _running(paths, before)
    if left:
        raise CliError(
            f"still running: {processes.names_of(left)}",
            remedy="they hang in the kernel or belong to another user; see `ps -fp PID`",
        )
    processes.sweep(paths)
    ended.took_s = time.monotonic() - began
    return ended


def until(seconds: float, done: Callable[[], bool]) -> bool:
    """Wait until `done()` is true, at most `seconds`. Return whether it became true in time."""
    ends_at = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= ends_at:
            return False
        time.sleep(LOOK_S)
    return True


def _running(paths: Paths, before: list[Leftover]) -> list[Leftover]:
    """Return the processes of this home that still run: processes in `before`, and further
    processes that are found now."""
    running = {leftover.pid: leftover for leftover in before if processes.alive(leftover)}
    running.update({leftover.pid: leftover for leftover in processes.leftovers(paths)})
    return list(running.values())
