"""A watchdog's word about a thread: a trace of looks, four a second."""

from __future__ import annotations

from runner.roles.model_thread import Watchdog

LOOK_S, LIMIT_S = 0.25, 5.0


def found_stuck_after(waits_share: float, *, within_s: float) -> float | None:
    """When a thread that owes a result since 0 is found stuck, if it had no core for so much of the
    time; None: not within so many seconds."""
    waited = [0.0]
    dog = Watchdog(lambda: 0.0, lambda: waited[0])
    for look in range(1, int(within_s / LOOK_S) + 1):
        now = look * LOOK_S
        waited[0] += LOOK_S * waits_share
        if dog.passed(now, lambda: LIMIT_S) is not None:
            return now
    return None


def test_a_step_that_waits_for_a_hung_device_is_found_within_its_limit_and_a_look() -> None:
    found = found_stuck_after(0.0, within_s=60.0)
    assert found is not None and LIMIT_S < found <= LIMIT_S + LOOK_S


def test_a_step_that_gets_a_tenth_of_a_core_has_ten_times_as_long() -> None:
    assert found_stuck_after(0.9, within_s=9 * LIMIT_S) is None
    assert found_stuck_after(0.9, within_s=11 * LIMIT_S) is not None


def test_a_thread_that_owes_nothing_is_not_judged() -> None:
    dog = Watchdog(lambda: None, lambda: 0.0)
    assert dog.passed(3600.0, lambda: LIMIT_S) is None


def test_a_machine_that_slept_for_a_minute_has_no_stuck_engine() -> None:
    dog = Watchdog(lambda: 1.0, lambda: 0.0)
    assert dog.passed(1.25, lambda: LIMIT_S) is None
    assert dog.passed(61.25, lambda: LIMIT_S) is None
