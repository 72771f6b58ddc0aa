"""Probes against this very machine, macOS's figures from its own text, rates over a window."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.node import probes
from telemetry.node.probes import Rates, Window

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
    assert not probes.is_there(10**30)


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


def test_one_sample_has_no_rate() -> None:
    assert Window(5.0).add(10.0, 100.0).per_s == 0.0


def test_the_rate_is_growth_over_the_span_and_old_samples_leave() -> None:
    window = Window(2.0)
    for at, value in ((0.0, 0.0), (1.0, 100.0), (2.0, 110.0), (3.0, 120.0)):
        window = window.add(at, value)
    assert window.per_s == pytest.approx(10.0)
    assert len(window.samples) == 3


def test_a_counter_that_went_backwards_starts_anew() -> None:
    window = Window(5.0).add(0.0, 50.0).add(1.0, 60.0).add(2.0, 1.0)
    assert window.per_s == 0.0
    assert window.add(3.0, 3.0).per_s == pytest.approx(2.0)


def test_a_sample_that_is_not_newer_changes_nothing() -> None:
    window = Window(5.0).add(1.0, 1.0)
    assert window.add(1.0, 9.0) is window


@given(
    st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 100.0)), min_size=2, max_size=50),
    st.floats(0.1, 10.0),
)
def test_the_window_spans_at_least_what_it_promises_and_is_bounded(
    steps: list[tuple[float, float]], span_s: float
) -> None:
    window, at, value = Window(span_s), 0.0, 0.0
    for step_s, growth in steps:
        at, value = at + step_s, value + growth
        window = window.add(at, value)
        assert all(sample_at > at - span_s for sample_at, _ in window.samples[1:])
        assert window.per_s >= 0.0
    assert window.samples[0][0] <= max(at - span_s, steps[0][0])


def test_forgotten_keys_start_anew() -> None:
    rates = Rates(5.0)
    rates.rate("a", 0.0, 0.0)
    assert rates.rate("a", 1.0, 4.0) == pytest.approx(4.0)
    rates.keep({"b"})
    assert rates.rate("a", 2.0, 8.0) == 0.0


def test_the_sample_of_a_process_is_what_psutil_says() -> None:
    program = "open('/proc/self/comm', 'w').write(') S 1 (') if LINUX else 0; print(); input()"
    program = program.replace("LINUX", str(sys.platform == "linux"))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as child:
        try:
            assert child.stdout is not None and child.stdout.readline()
            first, other = psutil.Process(child.pid), probes.process(child.pid)
            assert other is not None and other.pid == child.pid
            age_s = time.time() - first.create_time()
            assert abs(other.uptime_s - age_s) < 1.0 and other.cpu_s <= sum(first.cpu_times()[:2])
            assert other.threads == first.num_threads() and other.resident_bytes > 0
            again = probes.process(child.pid)
            assert again is not None and again.started == other.started
        finally:
            child.kill()
