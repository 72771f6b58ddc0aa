"""First starts beside a program that keeps one core busy: what BLAS they choose, and what an idle
node makes of it.

    python -m tests.bench.first_starts [--starts 20] [--stays-busy] [--alone]

First the machine is measured without the busy program, until a measurement has no trouble: the
*quiet* choice. Each first start has folders of its own. If its measurement had trouble, the busy
program ends (unless `--stays-busy`), and the repetition runs as a node's worker runs it, at its
times (30 s of idleness, then pauses of 60 s and longer), but without the waits. Printed is how many
starts chose the quiet choice at once, and within ten idle minutes. `--alone` runs no busy program:
two measurements of a quiet machine should not differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conf.blas.choice import told
from conf.blas.libraries import usable_cores
from conf.blas.measure import prepared_blas
from conf.paths import Paths
from conf.settings import load_settings
from worker.machine.blas_repeats import RepeatTiming

PARITIES = ("exact", "fast")
IDLE_S = 600.0


def measured_in(folder: Path, believed_s: float) -> dict[str, Any]:
    """Choose in a folder of its own, in this process; return the choices and the trouble."""
    for name in ("measured", "preloads"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        setattr(Paths, name, property(lambda _, at=folder / name: at))
    began = time.monotonic()
    chosen: dict[str, str] = {}
    trouble, waited = "", 0.0
    for parity in PARITIES:
        settings = load_settings(home=folder, flags={"runner.parity": parity})
        outcome = prepared_blas(settings, believed_s=believed_s if parity == "exact" else 1e9)
        chosen[parity] = "" if outcome.choice is None else told(outcome.choice)
        trouble, waited = outcome.table.trouble, outcome.table.waited
    took_s = time.monotonic() - began
    return {"chosen": chosen, "trouble": trouble, "waited": waited, "seconds": took_s}


def start(folder: Path, believed_s: float = 1e9, *, idle: bool = False) -> dict[str, Any]:
    """Measure in a process of its own; `idle`: at the priority of a repetition."""
    command = [sys.executable, "-m", "tests.bench.first_starts", "--in", str(folder)]
    command += ["--believed", str(believed_s), *(["--idle"] if idle else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def busy_core(count: int) -> Iterator[None]:
    """Run programs that each want one core."""
    spin = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def repeated(folder: Path) -> dict[str, Any]:
    """Repeat as an idle node does, within ten minutes of its time; return the last result."""
    timing = RepeatTiming()
    at_s, pause_s, tries = timing.idle_s, timing.pause_s, 0
    result: dict[str, Any] = {"trouble": "not tried"}
    while result["trouble"] and at_s <= IDLE_S:
        result, tries = start(folder, 0.0, idle=True), tries + 1
        at_s, pause_s = at_s + pause_s, min(2 * pause_s, timing.most_pause_s)
    return {**result, "tries": tries}


def first_start(
    number: int, *, busy: int, stays_busy: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the result of one first start, and the one that an idle node has in the end."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with busy_core(busy):
            first = last = start(folder)
            if first["trouble"] and stays_busy:
                last = repeated(folder)
        if first["trouble"] and not stays_busy:
            last = repeated(folder)
    words = [f"{number:3}  {first['seconds']:4.1f} s  waited {first['waited']:4.0%}"]
    words += [first["chosen"][parity] for parity in PARITIES]
    if first["trouble"]:
        words += [
            first["trouble"],
            f"after {last['tries']} tries: {last['trouble'] or 'undisturbed'}",
        ]
    sys.stdout.write("; ".join(words) + "\n")
    sys.stdout.flush()
    return first, last


def main() -> int:
    """Print each start, and how many chose what a quiet machine chooses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--stays-busy", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--in", type=Path, dest="folder", help=argparse.SUPPRESS)
    parser.add_argument("--believed", type=float, default=1e9, help=argparse.SUPPRESS)
    parser.add_argument("--idle", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder is not None:
        # `chrt -r 1` before the command imitates a quiet machine
        if asked.idle and os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        sys.stdout.write(json.dumps(measured_in(asked.folder, asked.believed)) + "\n")
        return 0
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    sys.stdout.write(f"{usable_cores()} cores, load average before the first start {load}\n")
    with tempfile.TemporaryDirectory() as scratch:
        quiet = start(Path(scratch))
        for _ in range(10):
            quiet = start(Path(scratch), 0.0) if quiet["trouble"] else quiet
    sys.stdout.write(f"quiet: {quiet['chosen']} {quiet['trouble']}\n")
    busy = 0 if asked.alone else 1
    starts = [
        first_start(number, busy=busy, stays_busy=asked.stays_busy)
        for number in range(1, asked.starts + 1)
    ]
    for parity in PARITIES:
        at_once = sum(first["chosen"][parity] == quiet["chosen"][parity] for first, _ in starts)
        after = sum(last["chosen"][parity] == quiet["chosen"][parity] for _, last in starts)
        counts = Counter(last["chosen"][parity] for _, last in starts)
        sys.stdout.write(
            f"{parity}: {at_once} of {len(starts)} as on a quiet machine at once, {after} after at "
            f"most ten idle minutes; {dict(counts)}\n"
        )
    troubled = sum(bool(last["trouble"]) for _, last in starts)
    sys.stdout.write(f"{troubled} of {len(starts)} still disturbed in the end\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
