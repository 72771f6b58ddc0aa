"""Talks to the operating system: the parent of a program of `engines.toml`.

    python -I -S guard.py STOP_SIGNAL STOP_SECONDS PROGRAM [ARGUMENT ...]

The program gets a process group of its own. When this process's standard input ends, because the
runner closed it or died, the group gets the stop signal and after the seconds SIGKILL. When the
program ends by itself, the rest of its group is killed. The exit code is the program's, or 128 plus
the number of the signal that ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

NOT_STARTED = 127
"""The exit code if the program cannot be started."""
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run the program until it ends or standard input does; return the exit code."""
    stop, stop_s, words = int(arguments[0]), float(arguments[1]), arguments[2:]
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    parent = os.getpid()
    program = os.fork()
    if program == 0:
        _become(words, parent)
    with contextlib.suppress(OSError):
        os.setpgid(program, program)
    status = _wait(program, [0, woken], None)
    if status is None:
        _signal(program, stop)
        status = _wait(program, [woken], stop_s)
    _signal(program, signal.SIGKILL)
    if status is None:
        status = os.waitpid(program, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _become(words: list[str], parent: int) -> None:
    """Become the program, in a process group of its own, with an empty standard input."""
    os.setpgid(0, 0)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(NOT_STARTED)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"error: cannot start {words[0]}: {error.strerror}\n".encode())
    os._exit(NOT_STARTED)


def _wait(program: int, watched: list[int], within_s: float | None) -> int | None:
    """Wait until the program ends, and return its status. None: standard input ended first, or the
    seconds have passed."""
    ends_at = None if within_s is None else time.monotonic() + within_s
    while True:
        ended, status = os.waitpid(program, os.WNOHANG)
        if ended:
            return status
        left_s = None if ends_at is None else max(0.0, ends_at - time.monotonic())
        ready = select.select(watched, [], [], left_s)[0]
        if (not ready and left_s == 0.0) or (0 in ready and not os.read(0, 1024)):
            return None
        for end in ready:
            if end != 0:
                with contextlib.suppress(BlockingIOError):
                    os.read(end, 1024)


def _signal(program: int, number: int) -> None:
    """Send a signal to the program's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
