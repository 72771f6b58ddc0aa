"""Talks to py-spy: stacks and profiles of a live process, taken from outside.

py-spy runs as a child process and has a deadline. It never gets the locals option, so that prompts
stay out of a diagnosis. It never runs with more rights than this process. If the system forbids
access, the error is `Forbidden` and its text names the remedy. Calls block, so they need their own
thread.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import psutil

from bus.process.installation import command_to_add
from bus.wire.errors import ShoalError

Format = Literal["speedscope", "flamegraph"]
CONTENT_TYPES: dict[Format, str] = {
    "speedscope": "application/json",
    "flamegraph": "image/svg+xml",
}
DUMP_TIMEOUT_S = 5.0
RECORD_SLACK_S = 15.0
"""Time beyond the requested seconds, in which py-spy finds symbols and writes its file."""
MAX_CAPTURE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether py-spy may read this user's processes, and the reason. `program` is the path of
    py-spy."""

    allowed: bool
    reason: str
    program: str | None = None


class CaptureFailed(ShoalError):
    """py-spy produced no result; the text says why."""


class Forbidden(CaptureFailed):
    """The operating system does not let py-spy read that process."""


def find_pyspy() -> str | None:
    """Return the path of py-spy in this environment, else on the PATH; None if there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def probe(program: str | None = None) -> Capability:
    """Try py-spy on this process, and return whether it may read processes.

    The same rights apply to other processes of this user. Sampling does not pause this process, so
    it can wait for the result.
    """
    program = program or find_pyspy()
    if program is None:
        return Capability(False, f"py-spy is not installed; run `{command_to_add('py-spy')}`")
    try:
        _run([program, "dump", "--json", "--nonblocking", "--pid", str(os.getpid())], 10.0)
    except CaptureFailed as error:
        return Capability(False, str(error), program)
    return Capability(True, "py-spy may read this user's processes", program)


def stacks(program: str, pids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the threads of the processes in the form of `threads_of`, with the innermost frame
    first.

    Raises Forbidden, or CaptureFailed if a process has ended or py-spy missed its deadline.
    """
    threads: list[dict[str, Any]] = []
    for pid in pids:
        threads += threads_of(json.loads(_dumped(program, pid)))
    return threads


def _dumped(program: str, pid: int) -> str:
    """Return the stacks of a process as JSON, as py-spy prints it. A stopped process is sampled
    without a pause, because py-spy cannot pause it."""
    command = [program, "dump", "--json", "--pid", str(pid)]
    without_pause = ["--nonblocking"] if is_stopped(pid) else []
    return _run([*command, *without_pause], DUMP_TIMEOUT_S)


NO_SAMPLES = "No stack counts found"
"""py-spy's message if the process was idle during the whole profile."""
EMPTY: Mapping[Format, bytes] = {
    "speedscope": json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "name": "no samples: the process was idle",
            "profiles": [],
            "shared": {"frames": []},
        }
    ).encode(),
    "flamegraph": b"<svg xmlns='http://www.w3.org/2000/svg' width='400' height='40'>"
    b"<text x='10' y='25'>no samples: the process was idle</text></svg>",
}
"""The profile, in each format, of a process that was idle during the whole capture."""


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by SIGSTOP or by a debugger."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def threads_of(dump: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return py-spy's threads with only the documented fields: above all without locals."""
    return [
        {
            "pid": thread["pid"],
            "thread_id": thread["os_thread_id"] or thread["thread_id"],
            "name": thread["thread_name"] or "",
            "active": thread["active"],
            "owns_gil": thread["owns_gil"],
            "frames": [
                {"name": frame["name"], "filename": frame["filename"], "line": frame["line"]}
                for frame in cast(list[dict[str, Any]], thread["frames"])
            ],
        }
        for thread in dump
    ]


def profile(
    program: str, pid: int, *, seconds: float, rate_hz: int, form: Format, children: Sequence[int]
) -> bytes:
    """Sample one process and its children for `seconds`.

    Returns speedscope JSON or an SVG; an idle process has no samples. Raises the same errors as
    `stacks`.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-profile-") as folder:
        path = Path(folder) / "capture"
        command = [program, "record", "--pid", str(pid), "--format", form]
        command += ["--duration", str(max(1, round(seconds)))]
        command += ["--rate", str(rate_hz), "--threads", "--output", str(path)]
        if children:
            command.append("--subprocesses")
        try:
            _run(command, seconds + RECORD_SLACK_S)
        except CaptureFailed as error:
            if NO_SAMPLES not in str(error):
                raise
            path.unlink(missing_ok=True)
        if not path.exists():
            if not psutil.pid_exists(pid):
                raise CaptureFailed("the process ended during the capture")
            return EMPTY[form]
        if path.stat().st_size > MAX_CAPTURE_BYTES:
            raise CaptureFailed(
                f"the capture exceeds {MAX_CAPTURE_BYTES >> 20} MB; use fewer seconds or hertz"
            )
        return path.read_bytes()


def _run(command: list[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "RUST_BACKTRACE": "0"},
        )
    except subprocess.TimeoutExpired as error:
        raise CaptureFailed(f"py-spy did not finish within {timeout_s:.0f} s") from error
    except OSError as error:
        raise CaptureFailed(f"cannot start py-spy: {error}") from error
    if done.returncode != 0:
        raise refusal_of(done.stderr)
    return done.stdout


def refusal_of(output: str) -> CaptureFailed:
    """Return an error that explains `output`, py-spy's standard error, and names the remedy."""
    if "permission denied" in output.lower() or "operation not permitted" in output.lower():
        if sys.platform == "darwin":
            return Forbidden(
                "on macOS only root can read other processes (py-spy: permission denied)"
            )
        return Forbidden(
            "the system forbids ptrace (py-spy: permission denied); allow it with "
            "`sysctl kernel.yama.ptrace_scope=0`, or SYS_PTRACE in a container"
        )
    if "root" in output.lower() and sys.platform == "darwin":
        return Forbidden("on macOS only root can read other processes (py-spy needs root)")
    if "process executable name" in output or "No such process" in output:
        return CaptureFailed("the process no longer exists")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return CaptureFailed(f"py-spy: {lines[0] if lines else 'no reason given'}")
