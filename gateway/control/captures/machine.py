"""Talks to the system: the processes of a node, their memory and the ends of their logs.

Every call blocks, so it belongs in a thread. System tools run with a time limit. A tool that is
missing, fails or runs too long is reported with its output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from bus.process.logs import end_of
from bus.process.supervisor import Supervisor
from gateway.control.captures.archive import Missing
from gateway.control.captures.secrets import LEAST, Remover, secrets_of

LOG_BYTES = 128 << 10
LOGS_BYTES = 4 << 20
TOOL_S = 10.0
KEY_FILE_BYTES = 64 << 10
GATEWAY = "gateway"
MAC_TOOLS = (
    ("vmmap", ("vmmap", "-summary", "{pid}")),
    ("footprint", ("footprint", "{pid}")),
    ("sample", ("sample", "{pid}", "1", "-file", "/dev/stdout")),
)
"""Tools of macOS for one process: the name of the output file, and the command."""


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process of this node and its current state. `state` is psutil's name for the state
    (`stopped`: halted), `gone` if the process has ended, or `none` if supervisord lists no pid for
    it."""

    name: str
    pid: int
    status: str
    state: str
    description: str


@dataclass(frozen=True, slots=True)
class Machine:
    """One node's machine: its supervisord and its log folder."""

    supervisor: str
    logs: str

    def processes(self) -> list[SeenProcess]:
        """Return supervisord's processes and the gateway's HTTP processes. Raises OSError and
        ShoalError if supervisord does not answer."""
        seen: list[SeenProcess] = []
        for process in Supervisor(self.supervisor).list_processes():
            state = state_of(process.pid) if process.pid else "none"
            seen.append(
                SeenProcess(process.name, process.pid, process.status, state, process.description)
            )
            children = _children(process.pid) if process.name == GATEWAY and process.pid else []
            for count, pid in enumerate(children, 1):
                name = f"{GATEWAY}/{count}"
                seen.append(SeenProcess(name, pid, "running", state_of(pid), "HTTP process"))
        return seen

    def log_ends(self) -> Iterator[tuple[str, bytes | Missing]]:
        """Yield the last whole lines of each log, by file name, the newest log first. A log is
        listed as missing once all logs together exceed `LOGS_BYTES`."""
        folder, left_bytes = Path(self.logs), LOGS_BYTES
        logs = sorted(folder.glob("*.log"), key=_written_s, reverse=True) if self.logs else []
        for path in logs:
            try:
                end = end_of(path, LOG_BYTES)
            except OSError as error:
                yield path.name, Missing(f"logs/{path.name}", str(error))
                continue
            left_bytes -= len(end)
            if left_bytes < 0:
                why = f"left out: newer logs fill the limit of {LOGS_BYTES >> 20} MiB"
                yield path.name, Missing(f"logs/{path.name}", why)
            else:
                yield path.name, end


def remover_of(secret_files: Iterable[str], variables: Collection[str] = ()) -> Remover:
    """Return a remover of this node's secrets. They come from the key files and from the
    environment. The values of `variables` are secrets, too."""
    environment = {name: value for name, value in os.environ.items() if not _is_file(value)}
    secrets = secrets_of(environment, _contents(secret_files))
    named = {environment[name].strip() for name in variables if name in environment}
    return Remover(secrets | {secret for secret in named if len(secret) >= LEAST})


def memory_of(
    process: SeenProcess, platform: str = sys.platform
) -> Iterator[tuple[str, bytes | Missing]]:
    """Yield the system's reports about a process's memory, each as (its source, its text)."""
    if platform == "darwin":
        for name, command in MAC_TOOLS:
            yield name, _tool_says(name, [part.format(pid=process.pid) for part in command])
        return
    try:
        yield "smaps", Path(f"/proc/{process.pid}/smaps_rollup").read_bytes()
    except OSError as error:
        yield "smaps", Missing(f"memory of {process.name}", str(error))


def _tool_says(name: str, command: list[str]) -> bytes | Missing:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TOOL_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Missing(" ".join(command), f"{name} did not end within {TOOL_S:g} s")
    except OSError as error:
        return Missing(" ".join(command), f"cannot start {name}: {error}")
    if done.returncode:
        output = done.stderr.decode(errors="replace").strip() or "no output"
        return Missing(" ".join(command), f"{name} ended with {done.returncode}: {output}")
    return done.stdout


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def state_of(pid: int) -> str:
    """Return psutil's name for the state of a process; `gone` if the process does not exist."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return "gone"
    except psutil.Error as error:
        return f"unknown: {type(error).__name__}"


def _children(pid: int) -> list[int]:
    try:
        children = psutil.Process(pid).children()
        return [
            child.pid
            for child in sorted(children, key=lambda child: (child.create_time(), child.pid))
        ]
    except psutil.Error:
        return []


def _is_file(value: str) -> bool:
    return os.path.isabs(value) and os.path.exists(value)


def _contents(files: Iterable[str]) -> Iterator[str]:
    for name in files:
        try:
            with open(name, "rb") as file:
                yield file.read(KEY_FILE_BYTES).decode(errors="replace")
        except OSError:
            continue
