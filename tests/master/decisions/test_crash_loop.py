"""Failures for want of a rank on a lost node say nothing of the model; what is remembered of others
the next holder knows, too."""

from __future__ import annotations

import pytest

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from master.decisions.crash_loop import (
    FREE_FAILURES,
    GROUP_LOST,
    LOAD_FAILED,
    LONGEST_PAUSE_S,
    OLD_S,
    RETRY_FAILED_S,
    WELL_S,
    CrashLoops,
    news_of,
)

MANY = FREE_FAILURES + 3


def group(number: int) -> Instance:
    """A copy of the same model on nodes a and b."""
    shards = tuple(
        Shard(rank=n, node=NodeId(node), first_layer=n, last_layer=n + 1, bytes_reserved=1)
        for n, node in enumerate("ab")
    )
    return Instance(
        instance=InstanceId(f"i{number}"), model=ModelId("m"), shards=shards, context_tokens=64,
        keep_alive_s=-1.0,
    )  # fmt: skip


def test_a_model_whose_nodes_are_lost_again_and_again_is_never_paused() -> None:
    loops = CrashLoops()
    for number in range(MANY):
        at = 100.0 * number
        setback = loops.count_failure(group(number), GROUP_LOST, at)
        assert (setback.count, setback.pause_s, setback.gives_up) == (1, 0.0, False)
        loops.excuse({NodeId("b"): at - 1.0})
        assert loops.next_at(group(number).model) == 0.0


def test_a_pause_that_a_lost_node_brought_about_ends_when_it_is_found_lost() -> None:
    loops = CrashLoops()
    for number in range(FREE_FAILURES):
        loops.count_failure(group(number), -9, float(number))
    paused = loops.count_failure(group(9), GROUP_LOST, 10.0)
    assert paused.pause_s > 0 and loops.next_at(group(9).model) > 10.0
    loops.excuse({NodeId("b"): 9.7})
    assert loops.next_at(group(9).model) == 0.0
    assert loops.count_failure(group(9), -9, 20.0).count == FREE_FAILURES + 1


@pytest.mark.parametrize(
    ("exit_code", "lost"),
    [
        (-9, {NodeId("b"): 0.0}),
        (GROUP_LOST, {}),
        (GROUP_LOST, {NodeId("c"): 0.0}),
        (GROUP_LOST, {NodeId("b"): 1e6}),
    ],
    ids=["its own crash", "no node is lost", "another node is lost", "heard long after it"],
)
def test_other_failures_are_not_excused(exit_code: int, lost: dict[NodeId, float]) -> None:
    loops = CrashLoops()
    counts: list[int] = []
    for number in range(MANY):
        counts.append(loops.count_failure(group(number), exit_code, 10.0 * number).count)
        loops.excuse(lost)
    assert counts == list(range(1, MANY + 1))
    assert loops.next_at(group(0).model) > 10.0 * MANY


def test_within_a_minute_one_copy_is_given_up_but_not_for_lost_nodes() -> None:
    loops, one = CrashLoops(), group(0)
    for at in (0.0, 5.0, 10.0, 15.0):
        assert not loops.count_failure(one, GROUP_LOST, at).gives_up
        loops.excuse({NodeId("a"): at})
    given_up = [loops.count_failure(one, -9, at).gives_up for at in (20.0, 21.0, 22.0)]
    assert given_up == [False, False, True]
    loops.forget(one, 23.0)
    assert InstanceId("i0") not in loops.failures


# --- what the next holder knows ---

APART_S = 1e9
"""So far the wall's clock is ahead of the first holder's; the second's began later."""
LATER_S = 5_000.0


def handed_over(loops: CrashLoops, now: float, paused: dict[ModelId, float]) -> CrashLoops:
    """What a holder on another machine has of it, whose own clock says `now - LATER_S`."""
    told = loops.told(paused, APART_S)
    fresh = CrashLoops()
    fresh.recall(told.values(), now - LATER_S, APART_S + LATER_S)
    return fresh


@pytest.mark.parametrize("failures", range(1, MANY + 2))
def test_the_next_holder_goes_on_counting_where_the_last_one_was(failures: int) -> None:
    loops, at = CrashLoops(), 0.0
    for number in range(failures):
        at = 10_000.0 + 100.0 * number
        loops.count_failure(group(number), -9, at)
    fresh = handed_over(loops, at + 1.0, {})
    pause_s = loops.next_at(ModelId("m")) - at
    assert fresh.next_at(ModelId("m")) == pytest.approx(at + pause_s - LATER_S)
    same = loops.count_failure(group(99), -9, at + 50.0)
    assert fresh.count_failure(group(99), -9, at + 50.0 - LATER_S) == same
    assert same.count == failures + 1


def test_the_third_failure_within_a_minute_is_one_for_the_next_holder_too() -> None:
    loops, one = CrashLoops(), group(0)
    for at in (9_000.0, 9_010.0):
        assert not loops.count_failure(one, -9, at).gives_up
    assert handed_over(loops, 9_011.0, {}).count_failure(one, -9, 9_020.0 - LATER_S).gives_up
    fresh = handed_over(loops, 9_011.0, {})
    assert not fresh.count_failure(one, -9, 9_080.0 - LATER_S).gives_up, "a minute has passed"


def test_what_was_given_up_is_not_tried_again_by_the_next_holder_at_once() -> None:
    loops = CrashLoops()
    assert loops.count_failure(group(0), LOAD_FAILED, 9_000.0).gives_up
    assert loops.next_at(ModelId("m")) == 9_000.0 + RETRY_FAILED_S
    fresh = handed_over(loops, 9_001.0, {})
    assert fresh.next_at(ModelId("m")) == pytest.approx(9_000.0 + RETRY_FAILED_S - LATER_S)


def test_the_next_holder_takes_back_what_a_lost_node_brought_about() -> None:
    loops = CrashLoops()
    for number in range(FREE_FAILURES):
        loops.count_failure(group(number), -9, 9_000.0 + number)
    loops.count_failure(group(9), GROUP_LOST, 9_010.0)
    fresh = handed_over(loops, 9_011.0, {})
    fresh.excuse({NodeId("b"): 9_009.0 - LATER_S})
    assert fresh.rows[ModelId("m")].count == FREE_FAILURES
    assert fresh.next_at(ModelId("m")) == 0.0


@pytest.mark.parametrize("ahead_s", [-1e6, 1e6])
def test_a_clock_that_is_wrong_makes_no_pause_longer_than_the_longest(ahead_s: float) -> None:
    loops = CrashLoops()
    for number in range(MANY):
        loops.count_failure(group(number), -9, 9_000.0 + 100.0 * number)
    fresh = CrashLoops()
    fresh.recall(loops.told({}, 0.0).values(), 9_401.0, ahead_s)
    assert fresh.next_at(ModelId("m")) <= 9_401.0 + LONGEST_PAUSE_S
    assert fresh.count_failure(group(9), -9, 9_402.0).count == MANY + 1


def test_only_what_has_changed_is_written_and_what_is_over_is_forgotten() -> None:
    loops, model = CrashLoops(), ModelId("m")
    loops.count_failure(group(0), -9, 10.0)
    first = news_of(loops.told({}, 5.0), {})
    assert [(one.model, one.in_a_row) for one in first] == [(model, 1)]
    known = {one.model: one for one in first}
    assert news_of(loops.told({}, 5.001), known) == [], "the clocks have drifted, no more"
    assert [one.replica_at_s for one in news_of(loops.told({model: 70.0}, 5.0), known)] == [75.0]
    one = group(1).model_copy(update={"status": "ready"})
    loops.note_ready(one.instance, 20.0)
    loops.expire([one], 20.0 + WELL_S - 1.0)
    assert loops.rows, "it has not been well for long enough"
    loops.expire([one], 20.0 + WELL_S)
    (gone,) = news_of(loops.told({}, 5.0), known)
    assert gone.is_forgotten and gone.model == model


def test_a_failure_of_long_ago_is_forgotten_though_nothing_served_since() -> None:
    loops = CrashLoops()
    loops.count_failure(group(0), -9, 10.0)
    loops.expire([], 10.0 + OLD_S - 1.0)
    assert loops.rows
    loops.expire([], 10.0 + OLD_S)
    assert not loops.rows
