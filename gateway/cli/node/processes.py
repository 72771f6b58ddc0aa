"""Talks to the operating system: processes, ports and locks of one home.

Each process of a node locks a file of its own, and writes its pid into the file. So a locked file
names a live process of this home, and an unlocked file is left over from an earlier process. No
process is found by its name alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bus.process.endpoints import LOOPBACKS
from bus.process.identity import known_node_id
from bus.process.ports import addresses_of, listening, port_owner
from conf.paths import Paths
from conf.ports import DEFAULT_BASE_PORT, HIGHEST_BASE_PORT, PORTS, SPAN, port_of
from gateway.cli.node.locks import is_locked, lock_holder
from gateway.cli.output.errors import NO_NODE, REFUSED, CliError, at_home, no_node_in

if TYPE_CHECKING:
    from conf.settings import Settings

IN_USE = "in use"
"""These words in a port's problem mean that another program uses the port."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A live process of a home. `role` is `supervisord` or the name of a process."""

    role: str
    process: psutil.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        """Return the role and the pid as text."""
        return f"{self.role} (pid {self.pid})"


def names_of(leftovers: Iterable[Leftover]) -> str:
    """Return roles and pids of processes, for people."""
    return ", ".join(map(str, leftovers))


def run_tool(timeout_s: float, *command: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a command and wait for its end. Return its output. Raises OSError, TimeoutExpired."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, **how
    )


def tool_says(*command: str, timeout_s: float = 20.0) -> str:
    """Return the output of a system tool; empty if it is missing, fails or hangs."""
    try:
        done = run_tool(timeout_s, *command)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a command's error output. If the command wrote no error, return its
    exit code."""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def leftovers(paths: Paths) -> list[Leftover]:
    """Return the live processes of this home. supervisord is found by its pid file, other processes
    by their locks.

    Their child processes are included, because gunicorn's HTTP processes hold no lock. If the
    parent of an HTTP process was killed, that process is found by its title, which contains the
    node's id.
    """
    roles = {path.stem: lock_holder(path) for path in sorted(paths.runtime.glob("*.role"))}
    roles = {"supervisord": our_supervisord(paths), **roles}
    processes: dict[int, Leftover] = {}
    for role, pid in roles.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            if pid is not None:
                processes[pid] = Leftover(role, psutil.Process(pid))
    for parent in list(processes.values()):
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in parent.process.children(recursive=True):
                leftover = Leftover(f"child of {parent.role}", child)
                if alive(leftover):
                    processes.setdefault(child.pid, leftover)
    for orphan in _orphans(paths):
        processes.setdefault(orphan.pid, orphan)
    return list(processes.values())


def _orphans(paths: Paths) -> Iterable[Leftover]:
    """Yield the gateway's HTTP processes, by their title and their working directory."""
    node = known_node_id(paths.state)
    if node is None:
        return
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            title = " ".join(process.cmdline())
            if f"[shoal gateway {node}]" in title and Path(process.cwd()) == paths.run:
                yield Leftover("gateway HTTP process", process)


def our_supervisord(paths: Paths) -> int | None:
    """Return the pid in supervisord's pid file, if that process runs the configuration of this
    home. The pid file may be old, and its pid may belong to another process by now."""
    pid = read_supervisor_pid(paths.supervisord_pid)
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        # supervisord sets a title on Linux, so that its command line is one string
        if pid is not None:
            words = " ".join(psutil.Process(pid).cmdline())
            return pid if f" {paths.supervisord_conf} " in f" {words} " else None
    return None


def no_node(paths: Paths) -> CliError:
    """Return the error for a home whose supervisord does not answer. The error says either that
    nothing runs, or that supervisord hangs or lost its socket."""
    pid = our_supervisord(paths)
    if pid is None:
        return no_node_in(paths.home, chosen=paths.chosen)
    where = at_home(paths.home if paths.chosen else None)
    return CliError(
        f"the node of {paths.home} is running, but its supervisord (pid {pid}) does not answer",
        remedy=f"restart it with `shoal restart{where}`, or stop it with `shoal down{where}`",
        code=NO_NODE,
    )


def alive(leftover: Leftover) -> bool:
    """Return whether this process still runs. A later process with the same pid does not count."""
    process = leftover.process
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def signal_all(leftovers: Iterable[Leftover], number: int) -> None:
    """Send the signal `number` to each process that still runs."""
    for leftover in leftovers:
        with contextlib.suppress(psutil.NoSuchProcess):
            leftover.process.send_signal(number)


def sweep(paths: Paths) -> None:
    """Delete the files that only live processes need: the runtime folder (sockets, locks), the pid
    file, and the flags and settings of the last `up`. Call it only when nothing of this home
    runs."""
    shutil.rmtree(paths.runtime, ignore_errors=True)
    for path in (paths.supervisord_pid, paths.up_file, paths.up_config):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.runtime.parent.rmdir()


@contextlib.contextmanager
def alone(paths: Paths) -> Generator[None]:
    """Hold the lock for starting and stopping this home. Raises CliError if another process holds
    it."""
    paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(paths.state, os.O_RDONLY)
    try:
        try:
            # lock the folder itself, so that no lock file stays behind
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CliError(
                f"another `shoal up` or `shoal down` is running in {paths.home}",
                remedy="wait until it finishes",
                code=REFUSED,
            ) from error
        yield
    finally:
        os.close(folder)


def litter(paths: Paths) -> list[str]:
    """Return the names of the lock files in the runtime folder that no live process holds."""
    locks = sorted((*paths.runtime.glob("*.role"), *paths.runtime.glob("*.lock")))
    return [path.name for path in locks if not is_locked(path)]


def port_problem(host: str, port: int) -> str | None:
    """Return why the port cannot be used, with its owner if the system reports it; None if it is
    free."""
    problems = (_problem_at(address, port) for address in addresses_of(host))
    return next((problem for problem in problems if problem is not None), None)


def _problem_at(host: str, port: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            problem = f"port {port} is {IN_USE} by {port_owner(port, host) or 'another program'}"
            return problem + (f", at {host}" if host == LOOPBACKS[1] else "")
        return f"cannot listen at {host}:{port}: {error.strerror or error}"
    return None


def unusable_ports(settings: Settings) -> dict[str, str]:
    """Return the ports of a stopped node that cannot be used, as a map from the port's use to its
    problem.

    Ports that the node opens only later (runners' data, a ring) are checked too if other machines
    connect to them.
    """
    listen = settings.cluster.listen
    unusable: dict[str, str] = {}
    for use, row in PORTS.items():
        host = (settings.http_host if settings.api else "") if use == "http" else listen
        ports = range(settings.port_of(use), settings.port_of(use) + row.count) if host else ()
        problems = (port_problem(host, port) for port in ports)
        first = next((problem for problem in problems if problem is not None), None)
        if first is not None:
            unusable[use] = first
    return unusable


def closed_ports(settings: Settings) -> dict[str, str]:
    """Return the ports on which a running node of this home should listen but does not, as a map
    from the port's use to its problem. A check by connecting would not find these ports, because
    another node may answer on them."""
    problems: dict[str, str] = {}
    for use, row in PORTS.items():
        if not row.process or not (settings.api if use == "http" else settings.cluster.listen):
            continue
        pid = lock_holder(settings.paths.runtime / f"{row.process}.role")
        port = settings.port_of(use)
        if pid is None or port not in listening(pid):
            owner = port_owner(port) or "no process that the system reports"
            problems[use] = f"{row.process} does not listen at port {port}; {owner} does"
    return problems


def free_base_port(settings: Settings) -> int | None:
    """Return a base port such that all ports of a node are free now; None if the search finds
    none."""
    return next(free_base_ports(settings), None)


def free_base_ports(settings: Settings) -> Iterator[int]:
    """Yield the base ports such that all ports of a node are free now, lowest first."""
    hosts = (settings.http_host, settings.cluster.listen or settings.http_host)
    for base in range(DEFAULT_BASE_PORT + SPAN, HIGHEST_BASE_PORT, SPAN):
        uses = [(hosts[use != "http"], port_of(use, base), row.count) for use, row in PORTS.items()]
        if not any(port_problem(host, p) for host, port, n in uses for p in range(port, port + n)):
            yield base


def move_command(settings: Settings) -> str:
    """Return the command that starts this node on free ports."""
    base = free_base_port(settings)
    if base is None:
        return "choose free ports with `shoal up --base-port PORT`"
    source = settings.sources.get("http_port", "default")
    follows = source == "default" or source.startswith("base_port")
    return (
        f"`shoal up --base-port {base}{'' if follows else f' --http-port {base}'}` moves all ports"
    )


def read_supervisor_pid(path: Path) -> int | None:
    """Return the pid in supervisord's pid file; None if there is no such file or pid."""
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None
