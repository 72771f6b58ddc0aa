"""When a runner is suspected, when it is lost, and when it is not to blame."""

from __future__ import annotations

from gateway.runners.liveness import Liveness


def life() -> Liveness:
    return Liveness(moved_at=0.0, heard_at=0.0, ticked_at=0.0)


def test_silence_is_suspect_after_2_s_and_lost_after_12() -> None:
    runner = life()
    said = [runner.tick(owed=True, now=float(second)) for second in range(1, 14)]
    assert said == ["well"] + ["suspect"] * 10 + ["lost"] * 2


def test_an_idle_runner_that_is_silent_is_suspect_until_it_answers() -> None:
    runner = life()
    runner.tick(owed=False, now=1.0)
    assert runner.tick(owed=False, now=2.5) == "suspect" and runner.silent_at == 2.0
    runner.pong(step=1, now=3.0)
    assert runner.tick(owed=False, now=3.5) == "well" and runner.silent_at == 5.0


def test_an_engine_without_progress_is_suspect_after_4_s() -> None:
    runner = life()
    verdicts: list[str] = []
    for second in range(1, 6):
        runner.pong(step=-1, now=float(second))
        verdicts.append(runner.tick(owed=True, now=float(second)))
    assert verdicts == ["well"] * 3 + ["suspect"] * 2


def test_requests_leave_a_silent_runner_after_2_s_and_a_stuck_one_after_6() -> None:
    runner = life()
    assert runner.leave_at == 2.0
    for second in range(1, 6):
        runner.pong(step=-1, now=float(second))
        assert runner.leave_at == min(second + 2.0, 6.0)


def test_a_slow_runner_is_stuck_after_three_times_its_slowest_progress() -> None:
    runner = life()
    runner.pong(step=1, now=3.0)
    runner.pong(step=2, now=4.0)
    runner.pong(step=2, now=11.5)
    assert runner.slowest_s == 3.0 and runner.leave_at == 4.0 + 9.0
    runner.tick(owed=False, now=12.0)
    runner.pong(step=3, now=12.5)
    assert runner.slowest_s == 3.0, "nothing was owed meanwhile"


def test_a_live_main_thread_cannot_hide_a_stuck_engine() -> None:
    runner = life()
    runner.pong(step=7, now=0.0)
    for second in range(1, 12):
        runner.pong(step=7, now=float(second))
        assert runner.tick(owed=True, now=float(second)) != "lost"
    runner.pong(step=7, now=12.0)
    assert runner.tick(owed=True, now=12.0) == "lost"


def test_a_step_or_an_entry_is_progress() -> None:
    runner = life()
    for second in range(1, 60):
        if second % 2:
            runner.pong(step=second, now=float(second))
        else:
            runner.entries(float(second))
        assert runner.tick(owed=True, now=float(second)) == "well"


def test_where_nothing_is_owed_a_resting_engine_is_well() -> None:
    runner = life()
    for second in range(1, 60):
        runner.pong(step=1, now=float(second))
        assert runner.tick(owed=False, now=float(second)) == "well"
    assert runner.tick(owed=True, now=60.0) == "well", "the debt begins now"


def test_our_own_stall_is_not_held_against_it() -> None:
    runner = life()
    runner.tick(owed=True, now=1.0)
    assert runner.tick(owed=True, now=30.0) == "well"
    assert runner.woke_at == 30.0, "what was submitted before has its time from here on"
    runner.entries(30.5)
    assert runner.tick(owed=True, now=31.0) == "well"
