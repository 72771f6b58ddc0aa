"""Measures the CPU seconds that each file of tests takes, for the report of `parts`.

What a file takes is what this process, its children and the daemons of its nodes took while the
file's tests ran. A node that files share counts for each of them while it runs. A process that a
test has started is found by its environment, which names the run and pytest's worker; what neither
we nor `endings.end` saw end is missing.
"""

from __future__ import annotations

import contextlib
import os

import psutil

from tests.harness import endings
from tests.harness.counts import VARIABLE, count_cpu

OF_THIS_RUN = (VARIABLE, "PYTEST_XDIST_WORKER")


class CpuOfFiles:
    """Notes what was taken since it last noted."""

    def __init__(self) -> None:
        self._before_s = 0.0

    def note(self, of: str, *, daemons: bool) -> None:
        """Note that the tests of the file `of` took what was taken since the last note; with
        `daemons`, also what processes took that are no children of ours. Nothing where nobody
        counts."""
        if VARIABLE in os.environ:
            now_s = sum(os.times()[:4]) + (_of_daemons_s() if daemons else 0.0)
            count_cpu(of, now_s - self._before_s)
            self._before_s = now_s


def _of_daemons_s() -> float:
    """Return the CPU seconds of living processes of this worker's tests, and of ended nodes."""
    ours = [os.environ.get(name) for name in OF_THIS_RUN]
    above = {os.getpid(), *(one.pid for one in psutil.Process().parents())}
    living_s = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            its = process.environ()
            if process.pid not in above and [its.get(name) for name in OF_THIS_RUN] == ours:
                living_s += endings.cpu_s(process.pid)
    return living_s + sum(endings.ended_s)
