"""What kept a loop from turning is counted, and waiting for a core is not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.links.reactor import AsyncioReactor, PollReactor
from bus.process.stalls import BOUNDS_S, StallCounts, StallMeter, read_stalls


def spin(seconds: float) -> None:
    """Use the processor for so many seconds of this thread's own time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@given(st.lists(st.floats(0.01, 20.0), max_size=30))
def test_counts_are_those_of_a_histogram(stalls: list[float]) -> None:
    found = StallCounts()
    for stall in stalls:
        found = found.with_one(stall)
    for index, bound in enumerate(BOUNDS_S):
        assert sum(found.counts[: index + 1]) == sum(stall <= bound for stall in stalls)
    assert sum(found.counts) == len(stalls)
    assert found.sum_s == pytest.approx(sum(stalls))
    assert found.longest_s == max(stalls, default=0.0)


def test_a_long_turn_of_a_services_loop_is_told_to_who_reads_the_file(tmp_path: Path) -> None:
    reactor = PollReactor()
    reactor.measure(StallMeter(tmp_path, "runner:00"))
    reactor.later(0.0, lambda: spin(0.12))
    reactor.later(0.0, reactor.stop)
    reactor.run()
    reactor.close()
    found = read_stalls(tmp_path)["runner:00"]
    assert sum(found.counts) >= 1 and found.longest_s >= 0.1


def test_a_short_turn_is_no_stall(tmp_path: Path) -> None:
    meter = StallMeter(tmp_path, "bus")
    meter.woke()
    meter.done()
    meter.late(0.002)
    assert read_stalls(tmp_path)["bus"] == StallCounts()


def test_what_holds_the_interpreter_stalls_an_asyncio_loop(tmp_path: Path) -> None:
    async def life() -> None:
        reactor = AsyncioReactor(asyncio.get_running_loop())
        reactor.measure(StallMeter(tmp_path, "gateway:0"))
        await asyncio.sleep(0.15)
        time.sleep(0.8)
        await asyncio.sleep(0.15)

    asyncio.run(life())
    assert read_stalls(tmp_path)["gateway:0"].longest_s >= 0.2


@pytest.mark.parametrize(("waits_ratio", "reads"), [(0.0, 2), (0.001, 2), (0.1, 18)])
def test_a_thread_that_hardly_waits_for_a_core_is_measured_less_often(
    waits_ratio: float, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waits:
        reads = 0

        def seconds(self) -> float:
            self.reads += 1
            return waits_ratio * clock[0]

    clock, waits = [10.0], Waits()
    monkeypatch.setattr("bus.process.stalls.now", lambda: clock[0])
    meter = StallMeter(tmp_path, "bus")
    monkeypatch.setattr(meter, "_wait", waits)
    for _ in range(200):  # two seconds
        meter.woke()
        clock[0] += 0.01
    assert reads <= waits.reads <= 2 * reads + 2
    meter.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of waiting for a core")
def test_waiting_for_a_core_is_no_stall(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    walls: list[float] = []

    def turn() -> None:
        os.sched_setaffinity(0, {core})  # of this thread alone
        meter = StallMeter(tmp_path, "worker")
        meter.woke()
        at = time.monotonic()
        spin(0.15)
        walls.append(time.monotonic() - at)
        meter.done()

    try:
        for process in busy:
            os.sched_setaffinity(process.pid, {core})
        thread = threading.Thread(target=turn)
        thread.start()
        thread.join(60.0)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    found = read_stalls(tmp_path)["worker"].longest_s
    assert walls[0] > 0.3, "the core was to be shared"
    assert 0.1 < found < walls[0] - 0.1


def test_a_file_that_is_none_of_ours_is_passed_over(tmp_path: Path) -> None:
    assert read_stalls(tmp_path) == {}
    StallMeter(tmp_path, "bus").add(0.5)
    (tmp_path / "other.stalls").write_bytes(b"short")
    assert list(read_stalls(tmp_path)) == ["bus"]
