"""The counts of a gateway go on with the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
GATEWAY = """
import os, sys
from pathlib import Path
from gateway.view.earlier_counts import go_on
from gateway.view.counters import Counters
from gateway.view.metrics import Metrics, read_totals
go_on(Path(sys.argv[1]), sys.argv[2])
metrics = Metrics(Counters())
metrics.ended("m", "finished", 7, 0.02, 0.3)
metrics.fault(404)
totals = read_totals()
told = totals.requests["finished"], totals.prompt_tokens, totals.http_errors
print(*told, totals.ttft_s.counts[1])
os.kill(os.getpid(), 9)
"""


def gateway(folder: Path, version: str) -> list[int]:
    """What the counts are after one more request of a gateway that is killed then."""
    done = subprocess.run(
        [sys.executable, "-P", "-u", "-c", GATEWAY, str(folder), version],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_the_counts_of_killed_gateways_go_on_in_as_few_files(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    assert [gateway(folder, "1") for _ in range(3)] == [
        [1, 7, 1, 1], [2, 14, 2, 2], [3, 21, 3, 3],
    ]  # fmt: skip
    names = sorted(path.name.partition("_")[0] for path in folder.glob("*.db"))
    assert names == ["counter", "counter", "histogram", "histogram"]


def test_what_another_version_counted_is_let_go(tmp_path: Path) -> None:
    assert gateway(tmp_path, "1") == [1, 7, 1, 1]
    assert gateway(tmp_path, "2") == [1, 7, 1, 1]


def test_a_file_that_cannot_be_read_costs_its_own_counts_alone(tmp_path: Path) -> None:
    assert gateway(tmp_path, "1") == [1, 7, 1, 1]
    (tmp_path / "counter_99.db").write_bytes(b"\x01")
    (tmp_path / "counter_98.db").write_bytes(b"\xff\x00\x00\x00" + b"\x01" * 300)
    assert gateway(tmp_path, "1") == [2, 14, 2, 2]
