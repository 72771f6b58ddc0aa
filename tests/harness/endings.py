"""Finds and ends the processes of one home, by pid.

A process belongs to a home when its environment names it. On Linux a process is signalled through
a descriptor of itself, so that a pid that was given away meanwhile is never hit.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import psutil

from conf.paths import Paths
from gateway.cli.node.processes import read_supervisor_pid

LINUX = sys.platform == "linux"
ended_s: list[float] = []
"""The CPU seconds of what has ended, by `cpu_s`: one number for each block of `noting`."""


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that it has waited for."""
    with contextlib.suppress(psutil.Error):
        return sum(psutil.Process(pid).cpu_times()[:4])
    return 0.0


def living(home: Path) -> list[int]:
    """Return the pids of all living processes whose environment names this home, but our own."""
    found = _living_on_linux(home) if LINUX else _living_elsewhere(home)
    return [pid for pid in found if pid != os.getpid()]


@contextlib.contextmanager
def noting(home: Path) -> Generator[None]:
    """Note the CPU seconds of processes of a home that end while the block lasts."""
    before_s = sum(map(cpu_s, living(home)))
    yield
    ended_s.append(before_s - sum(map(cpu_s, living(home))))


def end(home: Path, paths: Paths) -> None:
    """Kill everything of a home: supervisord first, which would start the others again, then what
    it leaves, until nothing is found. Returns when all have ended."""
    supervisord = read_supervisor_pid(paths.supervisord_pid)
    found = living(home)
    with noting(home):
        if supervisord in found:
            _kill([supervisord])
        while found:
            _kill(found)
            found = living(home)


def _living_on_linux(home: Path) -> list[int]:
    """A zombie has no environment any more, so that none is found."""
    wanted = b"SHOAL_HOME=" + os.fsencode(home)
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(int(name))
    return found


def _living_elsewhere(home: Path) -> list[int]:
    found: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("SHOAL_HOME") == str(home):
                found.append(process.pid)
    return found


def _kill(pids: list[int]) -> None:
    """Kill these processes, and wait until each has ended."""
    with contextlib.ExitStack() as stack:
        ready = select.poll()
        waits = 0
        for pid in pids:
            if not LINUX:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                continue
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                ready.register(descriptor, select.POLLIN)
                waits += 1
        while waits:
            for descriptor, _ in ready.poll():
                ready.unregister(descriptor)
                waits -= 1
