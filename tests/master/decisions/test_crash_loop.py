"""Failures for want of a rank on a lost node say nothing of the model; what is remembered of others
the next holder knows, too."""

from __future__ import annotations

from typing import Any

import pytest

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Setbacks, Shard
from master.decisions.crash_loop import (
    FREE_FAILURES,
    GROUP_LOST,
    LOAD_FAILED,
    LONGEST_PAUSE_S,
    RETRY_FAILED_S,
    WELL_S,
    CrashLoops,
    FailedRow,
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
    told = loops.setbacks(paused, APART_S)
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
    fresh.recall(loops.setbacks({}, 0.0).values(), 9_401.0, ahead_s)
    assert fresh.next_at(ModelId("m")) <= 9_401.0 + LONGEST_PAUSE_S
    assert fresh.count_failure(group(9), -9, 9_402.0).count == MANY + 1


def test_only_what_has_changed_is_written_and_what_is_over_is_forgotten() -> None:
    loops, model = CrashLoops(), ModelId("m")
    loops.count_failure(group(0), -9, 10.0)
    first = news_of(loops.setbacks({}, 5.0), {})
    assert [(one.model, one.in_a_row) for one in first] == [(model, 1)]
    known = {one.model: one for one in first}
    assert news_of(loops.setbacks({}, 5.001), known) == [], "the clocks have drifted, no more"
    assert [one.replica_at_s for one in news_of(loops.setbacks({model: 70.0}, 5.0), known)] == [
        75.0
    ]
    one = group(1).model_copy(update={"status": "ready"})
    loops.note_ready(one.instance, 20.0)
    loops.expire([one], 20.0 + WELL_S - 1.0)
    assert loops.rows, "it has not been well for long enough"
    loops.expire([one], 20.0 + WELL_S)
    (gone,) = news_of(loops.setbacks({}, 5.0), known)
    assert gone.is_forgotten and gone.model == model


def test_a_failure_of_long_ago_is_forgotten_though_nothing_served_since() -> None:
    loops = CrashLoops()
    loops.count_failure(group(0), -9, 10.0)
    loops.expire([], 10.0 + 86_399.0)
    assert loops.rows
    loops.expire([], 10.0 + 86_400.0)
    assert not loops.rows


# --- to the second, as the pages for operators promise ---


def test_two_failures_are_made_good_at_once_then_pauses_double_up_to_ten_minutes() -> None:
    loops = CrashLoops()
    assert loops.next_at(ModelId("m")) == 0.0
    for number, pause_s in enumerate((0, 0, 15, 30, 60, 120, 240, 480, 600, 600)):
        at = 1_000.0 * number
        found = loops.count_failure(group(number), -9, at)
        assert (found.count, found.pause_s, found.gives_up) == (number + 1, pause_s, False)
        assert loops.next_at(ModelId("m")) == at + pause_s
        assert loops.counted(group(number)) == found
        assert loops.counted(group(number + 1)) is None
        later = group(number).model_copy(update={"generation": 2})
        assert loops.counted(later) is None
    loops.rows[ModelId("m")].count = 5_000
    assert loops.count_failure(group(99), -9, 0.0).pause_s == 600.0
    assert CrashLoops(20.0).count_failure(group(0), -9, 0.0).pause_s == 0.0


@pytest.mark.parametrize(
    ("codes", "apart_s", "gives_up"),
    [
        ((1, 1), 1.0, False), ((1, 1, 1), 29.9, True), ((1, 1, 1), 30.0, False),
        ((70,), 0.0, False), ((70, 1), 59.0, True), ((70, 1), 60.0, False), ((1, 70), 59.0, True),
        ((72,), 0.0, True), ((71,), 0.0, False), ((73,), 0.0, False), ((None, None), 1.0, False),
        ((71, 71), 1.0, False),
    ],
)  # fmt: skip
def test_a_copy_is_given_up_after_three_failures_in_a_minute_or_one_that_says_so(
    codes: tuple[int | None, ...], apart_s: float, gives_up: bool
) -> None:
    loops, one = CrashLoops(), group(0)
    found = [loops.count_failure(one, code, apart_s * n) for n, code in enumerate(codes)]
    assert [setback.gives_up for setback in found[:-1]] == [False] * (len(found) - 1)
    assert found[-1].gives_up == gives_up
    counted = loops.counted(one)
    assert counted is not None and counted.count == len(codes)
    if gives_up:
        assert loops.next_at(one.model) == apart_s * (len(codes) - 1) + 60.0
        assert codes == (72,) or counted.gives_up


def test_a_model_that_was_given_up_waits_a_minute_or_its_longer_pause() -> None:
    loops = CrashLoops()
    for number in range(6):
        loops.count_failure(group(number), -9, 1_000.0 * number)
    assert loops.count_failure(group(9), LOAD_FAILED, 9_000.0).gives_up
    assert loops.next_at(ModelId("m")) == 9_000.0 + 240.0


def alone(number: int, node: str = "a") -> Instance:
    """An instance of the model on one node."""
    return group(number).model_copy(update={"shards": (shard_on(node),)})


def shard_on(node: str) -> Shard:
    return Shard(rank=0, node=NodeId(node), first_layer=0, last_layer=1, bytes_reserved=1)


def test_failures_are_forgotten_once_the_files_have_changed() -> None:
    loops, model, a = CrashLoops(), ModelId("m"), NodeId("a")
    loops.count_failure(alone(0), LOAD_FAILED, 10.0, node=a)
    assert loops.forget_replaced({a: {model: "broken"}}) == []
    assert loops.forget_replaced({}) == []  # its node is lost
    assert loops.forget_replaced({a: {model: "broken"}, NodeId("b"): {model: "other"}}) == []
    assert loops.barred(11.0) and loops.next_at(model) == 10.0 + RETRY_FAILED_S
    assert loops.forget_replaced({a: {model: "repaired"}}) == [model]
    assert not loops.barred(11.0) and loops.next_at(model) == 0.0 and not loops.rows
    assert loops.count_failure(alone(1), -9, 12.0, node=a).count == 1
    assert loops.forget_replaced({a: {model: "repaired"}}) == []
    assert loops.forget_replaced({a: {}}) == [model]  # deleted


def test_files_that_change_on_one_node_excuse_no_other() -> None:
    loops, model = CrashLoops(), ModelId("m")
    for number, node in enumerate("ab"):
        loops.count_failure(alone(number, node), LOAD_FAILED, 10.0, node=NodeId(node))
    broken = {NodeId(node): {model: "broken"} for node in "ab"}
    assert loops.forget_replaced(broken) == []
    assert loops.forget_replaced(broken | {NodeId("a"): {model: "repaired"}}) == [model]
    assert list(loops.barred(11.0)[model]) == ["b"]
    loops.count_failure(alone(2, "b"), LOAD_FAILED, 20.0, node=NodeId("b"))
    assert loops.forget_replaced({NodeId("b"): {model: "changed before the failure"}}) == []


@pytest.mark.parametrize(("served_s", "count"), [(299.0, 3), (300.0, 1)])
def test_a_copy_that_served_for_five_minutes_was_well(served_s: float, count: int) -> None:
    def failed_twice() -> CrashLoops:
        loops = CrashLoops()
        for at in (0.0, 10.0):
            loops.count_failure(group(0), -9, at)
        loops.note_ready(InstanceId("i1"), 100.0)
        return loops

    at, is_well = 100.0 + served_s, count == 1
    assert failed_twice().count_failure(group(1), -9, at).count == count
    gone = failed_twice()
    gone.forget(group(1), at)
    assert (ModelId("m") not in gone.rows, gone.ready_at) == (is_well, {})
    for status in ("ready", "placed"):
        watched = failed_twice()
        watched.expire([group(1).model_copy(update={"status": status})], at)
        assert (not watched.rows) == (is_well and status == "ready")
    unknown = failed_twice()
    unknown.forget(group(7), 1e6)
    unknown.expire([group(7).model_copy(update={"status": "ready"})], 1e4)
    assert unknown.rows, "since when another one served is not known"


@pytest.mark.parametrize(
    ("heard_at", "excused"),
    [
        ({"b": 10.5}, True), ({"b": 10.6}, False), ({"a": 99.0, "b": 9.0}, True), ({}, False),
        ({"a": 99.0, "b": 99.0}, False), ({"c": 9.0}, False),
    ],
)  # fmt: skip
def test_a_lost_node_excuses_what_failed_up_to_half_a_second_before_it_was_heard(
    heard_at: dict[str, float], excused: bool
) -> None:
    loops = CrashLoops()
    for number in range(3):
        loops.count_failure(group(number), -9, float(number))
    loops.count_failure(group(9), 76, 10.0)
    heard = {NodeId(node): at for node, at in heard_at.items()}
    loops.excuse(heard)
    row = loops.rows[ModelId("m")]
    assert (row.count, row.waits_until) == ((3, 0.0) if excused else (4, 40.0))
    assert loops.failures[InstanceId("i9")] == ([] if excused else [10.0])
    loops.excuse(heard)
    assert row.count == (3 if excused else 4), "it is taken back once"
    counted = loops.counted(group(9))
    assert counted is not None and counted.pause_s == (0.0 if excused else 30.0)


def test_an_only_failure_that_is_excused_is_forgotten_though_its_copy_is() -> None:
    loops, model = CrashLoops(), ModelId("m")
    loops.count_failure(group(0), GROUP_LOST, 10.0)
    loops.forget(group(0), 11.0)
    counted = loops.counted(group(0))
    assert counted is not None and not counted.gives_up
    loops.excuse({NodeId("a"): 9.0})
    assert model not in loops.rows and loops.counted(group(0)) is None


def test_what_is_told_is_by_the_clock_of_the_wall() -> None:
    loops, m, other = CrashLoops(), ModelId("m"), ModelId("x")
    for at in (1.0, 2.0, 3.0, 4.0):
        loops.count_failure(group(3), GROUP_LOST, at)
    told = loops.setbacks({other: 7.0}, 1_000.0)
    assert told[other] == Setbacks(model=other, replica_at_s=1_007.0)
    assert told[m] == Setbacks(
        model=m, in_a_row=4, instance=InstanceId("i3"), generation=1,
        failed_at_s=(1_002.0, 1_003.0, 1_004.0), again_at_s=1_064.0,
        for_want_of=(NodeId("a"), NodeId("b")),
    )  # fmt: skip
    assert loops.setbacks({m: 7.0}, 1_000.0)[m].replica_at_s == 1_007.0
    loops.excuse({NodeId("a"): 4.0})
    assert loops.setbacks({}, 1_000.0)[m].again_at_s == 0.0
    loops.forget(group(3), 5.0)
    assert loops.setbacks({}, 1_000.0)[m].failed_at_s == (1_004.0,)


def test_what_is_recalled_is_by_this_holders_clock_and_of_the_past() -> None:
    loops, m = CrashLoops(), ModelId("m")
    told = Setbacks(
        model=m, in_a_row=2, instance=InstanceId("i"), generation=3, again_at_s=1_150.0,
        failed_at_s=(1_090.0, 1_095.0, 1_200.0), for_want_of=(NodeId("a"),),
    )  # fmt: skip
    paused = Setbacks(model=ModelId("x"), replica_at_s=1_120.0)
    loops.recall([paused, told], 100.0, 1_000.0)
    assert set(loops.rows) == {m}
    assert loops.failures == {"i": [90.0, 95.0, 100.0]}
    nodes = frozenset({NodeId("a")})
    assert loops.rows[m] == FailedRow(2, 150.0, 100.0, InstanceId("i"), 3, nodes)
    loops.recall([told.model_copy(update={"failed_at_s": (), "again_at_s": 0.0})], 100.0, 1_000.0)
    assert (loops.rows[m].at, loops.rows[m].waits_until) == (100.0, 0.0)
    for longest_s, until in ((600.0, 700.0), (20.0, 160.0)):
        loops = CrashLoops(longest_s)
        loops.recall([told.model_copy(update={"again_at_s": 9_999.0})], 100.0, 1_000.0)
        assert loops.next_at(m) == until


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({}, False), ({"in_a_row": 3}, True), ({"instance": "j"}, True), ({"generation": 2}, True),
        ({"again_at_s": 9.0}, False), ({"replica_at_s": 0.5}, True),
        ({"failed_at_s": (9.0,)}, False),
    ],
)  # fmt: skip
def test_only_what_makes_a_difference_is_news(change: dict[str, Any], is_news: bool) -> None:
    model = ModelId("m")
    known = Setbacks(model=model, in_a_row=2, instance=InstanceId("i"), generation=1)
    told = known.model_copy(update=change)
    assert news_of({model: told}, {model: known}) == ([told] if is_news else [])
    assert news_of({model: known}, {model: told}) == ([known] if is_news else [])
    assert news_of({model: told}, {}) == [told]
    assert news_of({}, {model: told}) == [Setbacks(model=model)]
