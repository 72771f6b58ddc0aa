"""What a node costs to start and to stop: CPU seconds and wall seconds, five times.

    python -m tests.bench.node_start [--runs 5] [--tree FOLDER] [--kill]

CPU is user and system time of the whole tree of processes, those that ended and were waited for
included: this process adopts orphans (Linux alone). The first run has a fresh home, the rest a warm
one. `--kill` also kills an HTTP process, and reports the CPU seconds of the one that takes its
place.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from conf.paths import find_paths
from gateway.cli.node.processes import read_supervisor_pid
from tests.harness.nodes import ROOT, free_base_port

PR_SET_CHILD_SUBREAPER = 36


def spent_s() -> float:
    """CPU seconds of all descendants that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reap() -> None:
    """Wait for every descendant that became ours."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def shoal(tree: Path, env: Mapping[str, str], *words: str) -> tuple[float, float]:
    """Run a verb; return its wall and CPU seconds."""
    code = "import sys; from gateway.cli.app import main; sys.exit(main())"
    began, before = time.monotonic(), spent_s()
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        env={**env, "PYTHONPATH": str(tree)},
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return time.monotonic() - began, spent_s() - before


def processes(home: Path) -> dict[str, float]:
    """CPU seconds so far of each process of the node, children that it waited for left out."""
    pid = read_supervisor_pid(find_paths(home).supervisord_pid)
    supervisord = psutil.Process(pid)
    found = {"supervisord": sum(supervisord.cpu_times()[:2])}
    for process in supervisord.children(recursive=True):
        title = " ".join(process.cmdline()).replace("\0", " ").strip()
        words = title.split()
        name = " ".join(words[:3]) if "gunicorn" in title else " ".join(words[:2])
        key = name if name not in found else f"{name} {process.pid}"
        found[key] = sum(process.cpu_times()[:2])
    return found


def http_processes(home: Path) -> list[psutil.Process]:
    """The HTTP processes of the node, the children of gunicorn's master."""
    pid = read_supervisor_pid(find_paths(home).supervisord_pid)
    masters = [
        one for one in psutil.Process(pid).children() if "gateway" in " ".join(one.cmdline())
    ]
    return [child for master in masters for child in master.children()]


def killed(home: Path) -> float:
    """Kill an HTTP process; return the CPU seconds that its follower takes until it is idle."""
    before = {one.pid for one in http_processes(home)}
    os.kill(min(before), signal.SIGKILL)
    while not (fresh := [one for one in http_processes(home) if one.pid not in before]):
        time.sleep(0.05)
    spent = -1.0
    while (now := sum(fresh[0].cpu_times()[:2])) > spent:
        spent = now
        time.sleep(1.0)
    return spent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--kill", action="store_true")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    home = Path(tempfile.mkdtemp(prefix="node-start-"))
    env = {
        **os.environ,
        "SHOAL_HOME": str(home),
        "SHOAL_BASE_PORT": str(free_base_port()),
        "SHOAL_RUNNER__SPARE": "false",
        "NO_COLOR": "1",
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    totals: list[float] = []
    walls: list[float] = []
    last: dict[str, float] = {}
    try:
        for number in range(given.runs):
            reap()
            before = spent_s()
            up_s, up_cpu = shoal(given.tree, env, "up")
            last = processes(home)
            again = killed(home) if given.kill and number == given.runs - 1 else None
            down_s, down_cpu = shoal(given.tree, env, "down")
            reap()
            totals.append(spent_s() - before)
            walls.append(up_s)
            print(
                f"run {number}: node {totals[-1]:.2f} CPU s, up {up_s:.2f} s wall, "
                f"down {down_s:.2f} s wall; CPU of the verbs {up_cpu:.2f} and {down_cpu:.2f} s"
            )
            if again is not None:
                print(f"an HTTP process in place of a killed one: {again:.2f} CPU s")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    for name, seconds in sorted(last.items(), key=lambda row: -row[1]):
        print(f"  {name:32} {seconds:.2f} CPU s when it is up")
    warm = slice(1, None) if len(totals) > 1 else slice(None)
    print(
        f"median of the warm runs: {statistics.median(totals[warm]):.2f} CPU s, "
        f"up {statistics.median(walls[warm]):.2f} s wall"
    )


if __name__ == "__main__":
    main()
