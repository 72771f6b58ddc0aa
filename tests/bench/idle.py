"""What an idle node costs: CPU, memory and wake-ups of each of its processes.

    python -m tests.bench.idle [--seconds 60] [--tree FOLDER]

Starts a node in a home of its own, lets it settle, and reads /proc (Linux alone). CPU is a share of
one core. PSS counts a page that processes share once. A wake-up is a voluntary switch, of all
threads: unlike CPU time it does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from conf.paths import find_paths
from gateway.cli.node.processes import read_supervisor_pid
from tests.bench.node_start import shoal
from tests.harness.nodes import ROOT, free_base_port

SETTLE_S = 15.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process has used so far."""

    name: str
    cpu_s: float
    pss_mib: float
    private_mib: float
    wakes: int


def sample(process: psutil.Process) -> Sample:
    """Read one process."""
    folder = Path(f"/proc/{process.pid}")
    memory = dict(re.findall(r"^(\w+): +(\d+) kB$", (folder / "smaps_rollup").read_text(), re.M))
    private = int(memory["Private_Dirty"]) + int(memory["Private_Clean"])
    statuses = [task / "status" for task in (folder / "task").iterdir()]
    wakes = sum(
        int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)$", one.read_text(), re.M)[0])
        for one in statuses
    )
    title = " ".join(process.cmdline()).replace("\0", " ").split()
    name = " ".join(title[: 3 if "gunicorn:" in title[:1] else 2])
    if "-m" in title[:4] or name.endswith("-P"):
        name = " ".join(title[title.index("-P") + 1 :])[-32:]
    return Sample(
        name, sum(process.cpu_times()[:2]), int(memory["Pss"]) / 1024, private / 1024, wakes
    )


def samples(home: Path) -> dict[int, Sample]:
    """Read supervisord and everything below it."""
    supervisord = psutil.Process(read_supervisor_pid(find_paths(home).supervisord_pid))
    return {one.pid: sample(one) for one in (supervisord, *supervisord.children(recursive=True))}


def show(before: dict[int, Sample], after: dict[int, Sample], seconds: float) -> None:
    """Print the table, and the sums without runners and what they started."""
    print(f"{'process':34}{'% of a core':>12}{'PSS MiB':>10}{'private':>10}{'wakes/s':>10}")
    rows: list[tuple[str, float, float, float, float]] = []
    for pid, now in after.items():
        if pid in before:
            was = before[pid]
            cpu = 100 * (now.cpu_s - was.cpu_s) / seconds
            wakes = (now.wakes - was.wakes) / seconds
            rows.append((now.name, cpu, now.pss_mib, now.private_mib, wakes))
    ours = [row for row in rows if not any(word in row[0] for word in ("runner", "rendering"))]
    total = ("all besides runners", *(sum(row[n] for row in ours) for n in range(1, 5)))
    for name, *figures in (*sorted(rows), total):
        print(f"{name:34}{figures[0]:12.2f}{figures[1]:10.1f}{figures[2]:10.1f}{figures[3]:10.1f}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tree", type=Path, default=ROOT)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="idle-"))
    env = {
        **os.environ,
        "SHOAL_HOME": str(home),
        "SHOAL_BASE_PORT": str(free_base_port()),
        "NO_COLOR": "1",
    }
    try:
        shoal(given.tree, env, "up")
        time.sleep(SETTLE_S)
        before, began = samples(home), time.monotonic()
        time.sleep(given.seconds)
        after = samples(home)
        show(before, after, time.monotonic() - began)
    finally:
        shoal(given.tree, env, "down")
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
