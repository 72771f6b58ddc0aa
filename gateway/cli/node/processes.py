"""Talks to the operating system for the command line: processes, ports, locks of one home.

A role's lock file holds the pid of the process that holds it, so a locked file names a live process
of this home beyond doubt; an unlocked one is litter. Nothing here looks at processes by name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bus.process.supervisor import read_supervisor_pid
from conf.paths import Paths
from gateway.cli.output.errors import REFUSED, CliError


@dataclass(frozen=True, slots=True)
class Leftover:
    """A live process that belongs to a home. `role` is supervisord or a process's name."""

    role: str
    pid: int
    started_at_s: float


def ran(timeout_s: float, *command: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it said. Raises OSError, TimeoutExpired."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, **how
    )


def tool_says(*command: str, timeout_s: float = 20.0) -> str:
    """Return what a tool of the system says; nothing where it is not there, fails or hangs."""
    try:
        done = ran(timeout_s, *command)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a command's errors, or its exit code."""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def leftovers(paths: Paths) -> list[Leftover]:
    """Return the live processes of this home.

    supervisord is found by its pid file, the others by their locks, and with each its children
    (gunicorn's HTTP processes hold no lock).
    """
    found: dict[int, Leftover] = {}
    pid = read_supervisor_pid(paths.supervisord_pid)
    if pid is not None and _is_our_supervisord(pid, paths):
        _add(found, "supervisord", pid)
    for path in sorted(paths.runtime.glob("*.role")):
        holder = lock_holder(path)
        if holder is not None:
            _add(found, path.stem, holder)
    for parent in list(found.values()):
        for child in _children(parent.pid):
            if child not in found:
                _add(found, f"child of {parent.role}", child)
    return list(found.values())


def lock_holder(path: Path) -> int | None:
    """Return the pid of the process that holds the lock of `path`, None when it is free."""
    try:
        with open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    return None
                text = file.read().strip()
                return int(text) if text.isdigit() else None
    except OSError:
        return None
    return None


def alive(leftover: Leftover) -> bool:
    """Return whether that very process (and not a later one of its number) still runs."""
    try:
        process = psutil.Process(leftover.pid)
        same = abs(process.create_time() - leftover.started_at_s) < 0.5
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def signal_all(those: Iterable[Leftover], number: int) -> None:
    """Send a signal to each that is still the same process."""
    for one in those:
        if alive(one):
            try:
                os.kill(one.pid, number)
            except ProcessLookupError:
                continue


def sweep(paths: Paths) -> None:
    """Remove what only live processes need: the runtime folder (sockets, locks), the pid file,
    the flags of the last `up`. To be called when nothing of this home runs."""
    shutil.rmtree(paths.runtime, ignore_errors=True)
    for path in (paths.supervisord_pid, paths.up_file):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.runtime.parent.rmdir()


@contextlib.contextmanager
def alone(paths: Paths) -> Generator[None]:
    """Hold the lock of starting and stopping this home. Raises CliError when another does."""
    paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(paths.state, os.O_RDONLY)
    try:
        _lock_alone(folder, paths)
        yield
    finally:
        os.close(folder)


def _lock_alone(folder: int, paths: Paths) -> None:
    try:
        # The folder itself is locked, so that no file stays behind.
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CliError(
            f"another `shoal up` or `shoal down` is at work in {paths.home}",
            remedy="wait until it is done",
            code=REFUSED,
        ) from error


def litter(paths: Paths) -> list[str]:
    """Return the lock files in the runtime folder that no live process holds."""
    if not paths.runtime.is_dir():
        return []
    locks = [p for p in sorted(paths.runtime.iterdir()) if p.name.endswith((".role", ".lock"))]
    return [path.name for path in locks if not _locked(path)]


def port_problem(host: str, port: int) -> str | None:
    """Return why host:port cannot be listened at now, None when it is free.

    The owner is named where the system tells.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} is taken by {port_owner(port) or 'another program'}"
        return f"cannot listen at {host}:{port}: {error.strerror or error}"
    return None


def port_owner(port: int) -> str | None:
    """Return `name (pid 123)` of the process that uses a local TCP port, if the system tells."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.AccessDenied, OSError):
        return None
    for one in connections:
        if one.laddr and one.laddr.port == port and one.pid:
            try:
                return f"{psutil.Process(one.pid).name()} (pid {one.pid})"
            except psutil.NoSuchProcess:
                return None
    return None


def memory_bytes() -> tuple[int, int]:
    """Return (total, available) memory of this machine."""
    seen = psutil.virtual_memory()
    return seen.total, seen.available


def _add(found: dict[int, Leftover], role: str, pid: int) -> None:
    try:
        found[pid] = Leftover(role, pid, psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return


def _children(pid: int) -> list[int]:
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in children if _lives(child)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_our_supervisord(pid: int, paths: Paths) -> bool:
    """Return whether the pid's command names our supervisord file: a stale pid may be another's."""
    try:
        return str(paths.supervisord_conf) in psutil.Process(pid).cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _locked(path: Path) -> bool:
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
