"""Runs a command, and inherits and ends what it leaves behind.

    python reaper.py REPORT COMMAND...

On Linux a process whose parent ended becomes our child (a subreaper's), so the processor seconds of
daemons count as well. What still runs when the command has ended is killed. REPORT gets a JSON
object: `took_s` (until the command ended), `cpu_s` (null where the system has no subreapers, for
then it would lack the daemons) and `left` (what was killed). The exit status is the command's.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    report, *command = sys.argv[1:]
    adopts = _adopt()
    began_s = time.monotonic()
    child = subprocess.Popen(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(child.pid, number))
    status = None
    while status is None:
        pid, ended = os.wait()
        if pid == child.pid:
            status = child.returncode = os.waitstatus_to_exitcode(ended)
    took_s = time.monotonic() - began_s
    left = _end_children()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime if adopts else None
    Path(report).write_text(json.dumps({"took_s": took_s, "cpu_s": cpu_s, "left": left}))
    return status if status >= 0 else 128 - status


def _adopt() -> bool:
    """Become the parent of orphans; return whether the system lets us."""
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _end_children() -> list[str]:
    """Kill all that descends from us; return what it was."""
    left: list[str] = []
    while found := psutil.Process().children(recursive=True):
        for one in found:
            with contextlib.suppress(psutil.Error):
                if one.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"{one.pid} {' '.join(one.cmdline())[:150]}")
                    one.kill()
        with contextlib.suppress(ChildProcessError):
            os.wait()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return left


if __name__ == "__main__":
    sys.exit(main())
