"""Deadlines count time in which the watched could have worked, and no other."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.patience import MOST_GAP_S, OwedTime
from bus.process.clock import (
    LEAST_CORE_SHARE,
    CoreWaits,
    MachineWaits,
    core_share,
    tasks_of,
    working_tasks,
)

BEGAN = 100.0
looks = st.lists(st.tuples(st.floats(0.01, 30.0), st.floats(0.0, 1.0)), min_size=1, max_size=40)
"""Seconds between looks, and the share of each in which the watched had no core."""


def watched(looks: list[tuple[float, float]]) -> tuple[float, float, float]:
    """What counts of the time that was looked at so: (spent, in all, waited)."""
    waited = [0.0]
    owed = OwedTime(lambda: waited[0])
    owed.spent_s(BEGAN, BEGAN)
    owed.spent_s(BEGAN, BEGAN)  # from the second look on, waits are known
    now, spent_s = BEGAN, 0.0
    for gap_s, share in looks:
        now += gap_s
        waited[0] += gap_s * share
        spent_s = owed.spent_s(now, BEGAN)
    return spent_s, now - BEGAN, waited[0]


@given(looks)
def test_no_more_counts_than_has_passed_and_no_less_than_was_neither_waited_nor_stood_still(
    looks: list[tuple[float, float]],
) -> None:
    spent_s, all_s, waited_s = watched(looks)
    stood_still_s = sum(max(0.0, gap_s - MOST_GAP_S) for gap_s, _ in looks)
    assert -1e-9 <= spent_s <= all_s + 1e-9
    assert spent_s >= all_s - waited_s - stood_still_s - 1e-6


@given(st.lists(st.floats(0.01, MOST_GAP_S), min_size=1, max_size=40))
def test_a_thread_that_waits_for_a_hung_device_has_all_of_its_time_counted(
    gaps: list[float],
) -> None:
    spent_s, all_s, _ = watched([(gap_s, 0.0) for gap_s in gaps])
    assert spent_s == pytest.approx(all_s)


@given(st.floats(0.0, 0.99), st.floats(5.0, 60.0))
def test_a_thread_that_gets_little_of_a_core_is_found_stuck_after_as_much_work(
    share: float, limit_s: float
) -> None:
    needed = int(limit_s / (1.0 - share) / 0.25) + 2
    spent_s, _, _ = watched([(0.25, share)] * needed)
    assert spent_s >= limit_s
    before, _, _ = watched([(0.25, share)] * max(1, int(limit_s / (1.0 - share) / 0.25) - 1))
    assert before < limit_s


@given(st.floats(1.0, 1e6))
def test_a_standstill_of_any_length_adds_a_second(stood_still_s: float) -> None:
    spent_s, _, _ = watched([(0.25, 0.0), (stood_still_s, 0.0), (0.25, 0.0)])
    assert spent_s <= 0.5 + MOST_GAP_S + 1e-6


def test_a_standstill_just_after_something_is_owed_is_seen_at_the_first_look() -> None:
    owed = OwedTime(lambda: 0.0)
    owed.spent_s(BEGAN, None)
    assert owed.spent_s(BEGAN + 60.2, BEGAN + 0.2) <= MOST_GAP_S


def test_waits_are_asked_for_only_where_the_same_is_owed_for_longer() -> None:
    asked: list[float] = []
    owed = OwedTime(lambda: asked.append(0.0) or 0.0)
    for step in range(20):
        owed.spent_s(BEGAN + step / 4, BEGAN + step / 4)
        owed.spent_s(BEGAN + step / 4, None)
    assert asked == []


@given(st.floats(0.0, 1e4), st.integers(1, 256))
def test_the_share_of_a_core_is_whole_where_there_are_enough(runnable: float, cores: int) -> None:
    share = core_share(runnable, cores)
    assert LEAST_CORE_SHARE <= share <= 1.0
    assert (share == 1.0) == (runnable <= cores)


def test_what_a_crowded_machine_lets_wait_is_counted_and_a_free_one_nothing() -> None:
    crowded, free = MachineWaits(lambda: 1e9), MachineWaits(lambda: 0.0)
    assert crowded() >= 0.0 and free() == 0.0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux tells it of threads")
def test_the_systems_own_count_of_a_threads_waits_is_what_is_counted() -> None:
    me = threading.get_native_id()

    def told_s() -> float:
        return int(Path(f"/proc/self/task/{me}/schedstat").read_text().split()[1]) / 1e9

    waits, before_s = CoreWaits(lambda: [me]), told_s()
    waits()
    least_s = -told_s()
    for _ in range(200):
        os.sched_yield()
    least_s += told_s()
    counted_s = waits()
    assert least_s - 1e-6 <= counted_s <= told_s() - before_s + 1e-6


def test_threads_that_do_not_work_for_the_engine_are_not_among_those_that_do() -> None:
    release, engine_id = threading.Event(), list[int]()

    def work() -> None:
        engine_id.append(threading.get_native_id())
        release.wait()

    engine = threading.Thread(target=work, name="engine", daemon=True)
    engine.start()
    while not engine_id:
        os.sched_yield()
    try:
        found = list(working_tasks("engine")())
        if tasks_of(os.getpid())():
            assert engine_id[0] in found and threading.get_native_id() not in found
    finally:
        release.set()
        engine.join()
