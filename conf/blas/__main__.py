"""Measures the BLAS libraries again, if the last measurement failed in part (`python -m
conf.blas`).

A node's worker runs this while the node is idle. It runs only when no other program wants a core,
so that it delays no request. If another node of this user has just measured, this one uses the
results of that measurement. Prints the chosen library.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from conf.blas.choice import told
from conf.blas.measure import prepared_blas
from conf.blas.runners import publish_blas
from conf.paths import make_folders
from conf.settings import load_settings

BELIEVED_S = 25.0
"""A table (stored measurements) that has trouble, because its measurement failed in part, is still
used up to this age. The age is less than the time for which a node is idle before it first measures
again."""


def main() -> int:
    """Measure the libraries, and write the environment variables of runners that start later.
    Return 1 if the measurement failed in part again, and should be repeated later."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    settings = load_settings()
    make_folders(settings.paths)
    outcome = prepared_blas(settings, believed_s=BELIEVED_S)
    publish_blas(settings, outcome)
    choice = "none" if outcome.choice is None else told(outcome.choice)
    sys.stdout.write(f"{choice}{'; ' if outcome.trouble else ''}{outcome.trouble}\n")
    return 1 if outcome.repeats else 0


if __name__ == "__main__":
    sys.exit(main())
