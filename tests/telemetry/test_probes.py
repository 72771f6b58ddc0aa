"""Probes against this very machine, and macOS's figures from its own text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from telemetry import probes

VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            200000.
Pages wired down:                        100000.
"Translation faults":                 123456789.
Anonymous pages:                         150000.
Pages stored in compressor:               90000.
Pages occupied by compressor:             50000.
"""


def test_macos_memory_is_total_less_wired_anonymous_and_compressor() -> None:
    total = 400_000 * 16384
    found = probes.macos_available(total, probes.vm_stat_counts(VM_STAT))
    assert found is not None
    assert found.available_bytes == 100_000 * 16384
    assert found.wired_bytes == 100_000 * 16384


def test_macos_memory_is_not_guessed_when_a_count_is_missing() -> None:
    assert probes.macos_available(1 << 34, probes.vm_stat_counts("Pages free: 3.")) is None


def test_available_memory_is_part_of_the_total() -> None:
    found = probes.memory()
    assert 0 < found.available_bytes <= found.total_bytes


def test_this_process_uses_something_and_a_dead_one_reads_as_none() -> None:
    here = probes.process(os.getpid())
    assert here is not None and here.resident_bytes > 0 and here.threads >= 1
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait(30)
    assert probes.process(gone.pid) is None
    assert probes.children(gone.pid) == []
    assert probes.is_there(os.getpid()) and not probes.is_there(gone.pid)


def test_children_are_found_oldest_first() -> None:
    program = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as first:
        with subprocess.Popen(program, stdin=subprocess.PIPE) as second:
            ours = [p for p in probes.children(os.getpid()) if p in (first.pid, second.pid)]
            assert ours == [first.pid, second.pid]
            second.communicate(timeout=30)
        first.communicate(timeout=30)


def test_busy_processor_seconds_only_grow() -> None:
    before = probes.cpu_busy_s()
    sum(range(200_000))
    assert before > 0.0
    assert probes.cpu_busy_s() >= before - 1e-6, "but for rounding"


def test_the_disk_of_a_folder_that_is_yet_to_be_made_is_its_parents(tmp_path: Path) -> None:
    assert probes.disk(tmp_path / "a" / "b").total_bytes == probes.disk(tmp_path).total_bytes
