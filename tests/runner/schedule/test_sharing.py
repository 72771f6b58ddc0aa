"""Rows shared between those who ask: all of an idle runner, an even part of a busy one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.errors import Refusal
from bus.wire.ids import RequestId
from bus.wire.shares import Sharer
from runner.schedule.rows import Row, RowFailed, RowFinished, RowKey
from runner.schedule.scheduler import Placed
from runner.schedule.table import ScheduleSettings
from tests.harness.engine import facts, whole_output
from tests.harness.scheduling import Loop, prepared

ROWS = 8
TOKENS = 1500
PROMPT = [3, 5, 7, 11, 13, 17, 19, 23, 29]


def key(name: str) -> RowKey:
    return RowKey(RequestId(name), 0)


def sharer(client: str) -> Sharer:
    return ("", client, "10.0.0.1", "10.0.0.1:1")


def ask(loop: Loop, name: str, client: str, tokens: int = TOKENS) -> Placed | Refusal:
    return loop.submit(prepared(name, PROMPT, max_tokens=tokens), sharer=sharer(client))


def crowded(**given: float) -> Loop:
    """A runner whose rows and queue one client has taken, all of them running for two seconds."""
    loop = Loop(facts(), ScheduleSettings(max_rows=ROWS, max_waiting=4, **given))  # type: ignore[arg-type]
    answers = [ask(loop, f"hog{number}", "hog") for number in range(ROWS + 4)]
    assert all(isinstance(answer, Placed) for answer in answers)
    run_for(loop, 2.0)
    assert isinstance(ask(loop, "too many", "hog"), Refusal)
    return loop


def run_for(loop: Loop, seconds: float) -> None:
    end_at = loop.now + seconds
    while loop.now < end_at:
        if not loop.turn():
            loop.now += 0.01


def rows(loop: Loop) -> list[Row]:
    return list(loop.scheduler._table.rows.values())  # pyright: ignore[reportPrivateUsage]


def rows_of(loop: Loop, client: str) -> int:
    return sum(row.sharer == sharer(client) and row.row_id is not None for row in rows(loop))


def test_one_client_has_the_whole_of_an_idle_runner() -> None:
    loop = crowded()
    run_for(loop, 3.0)
    assert rows_of(loop, "hog") == ROWS
    assert not any(plan.preempt for plan in loop.plans)


def test_a_newcomer_has_a_row_within_two_seconds_and_loses_no_token_of_another() -> None:
    loop = crowded()
    assert isinstance(ask(loop, "other", "other", tokens=20), Placed)
    asked_at = loop.now
    while key("other") not in loop.token_at:
        loop.turn()
    assert loop.token_at[key("other")][0] - asked_at < 2.0
    loop.run(most_turns=200_000)
    assert sum(len(plan.preempt) for plan in loop.plans) == 1
    for number in range(ROWS):
        expected = whole_output(100, PROMPT, TOKENS, frozenset())
        assert loop.made[key(f"hog{number}")] == expected


def test_rows_are_given_up_until_both_have_half_and_then_no_more() -> None:
    loop = crowded()
    for number in range(ROWS // 2):
        assert isinstance(ask(loop, f"other{number}", "other"), Placed)
    run_for(loop, 2.0)
    assert (rows_of(loop, "hog"), rows_of(loop, "other")) == (ROWS // 2, ROWS // 2)
    run_for(loop, 10.0)
    assert sum(len(plan.preempt) for plan in loop.plans) == ROWS // 2


def test_who_has_less_finds_a_place_in_a_full_queue() -> None:
    loop = crowded()
    assert isinstance(ask(loop, "other", "other"), Placed)
    refused = ask(loop, "hog again", "hog")
    assert isinstance(refused, Refusal) and refused.reason == "queue_full"
    assert refused.retry_after_s is not None


def test_a_row_whose_client_does_not_read_goes_first() -> None:
    loop = crowded()
    loop.scheduler.pause(key("hog2"), loop.now)
    ask(loop, "other", "other", tokens=20)
    run_for(loop, 1.5)
    running = {row.key for row in rows(loop) if row.row_id is not None}
    assert key("other") in loop.made and key("hog2") not in running
    assert rows_of(loop, "hog") >= ROWS - 1


def test_rows_take_turns_in_giving_way() -> None:
    loop = crowded()
    for number in range(12):
        ask(loop, f"other{number}", "other", tokens=5)
        run_for(loop, 2.0)
        assert key(f"other{number}") in loop.ends
    assert sum(len(plan.preempt) for plan in loop.plans) == 12
    gave_way = [row.gave_way for row in rows(loop) if row.sharer == sharer("hog") and row.made]
    assert max(gave_way) - min(gave_way) <= 1, gave_way


def test_memory_is_given_up_as_well() -> None:
    loop = Loop(
        facts(kv_bytes=2000),
        ScheduleSettings(max_rows=ROWS, max_waiting=4, prefix_bytes=0, headroom_tokens=64),
    )
    for number in range(4):
        request = prepared(f"hog{number}", [2 + number] * 380, max_tokens=60)
        assert isinstance(loop.submit(request, sharer=sharer("hog")), Placed)
    run_for(loop, 0.3)
    asked_at = loop.now
    loop.submit(prepared("other", [40] * 500, max_tokens=4), sharer=sharer("other"))
    loop.run()
    assert all(isinstance(end, RowFinished) for end in loop.ends.values())
    assert loop.token_at[key("other")][0] - asked_at < 3.0


@settings(max_examples=40)
@given(
    asks=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 400), st.integers(0, 40)), max_size=40
    )
)
def test_nobody_who_has_less_waits_long_and_everyone_ends(asks: list[tuple[str, int, int]]) -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=4, max_waiting=40))
    for number, (client, tokens, pause) in enumerate(asks):
        ask(loop, f"r{number}", client, tokens)
        for _ in range(pause):
            loop.turn()
    loop.run(most_turns=200_000)
    for number, (_, tokens, _) in enumerate(asks):
        end = loop.ends[key(f"r{number}")]
        assert not isinstance(end, RowFailed)
        assert loop.made[key(f"r{number}")] == whole_output(100, PROMPT, tokens, frozenset())


def test_the_first_token_of_a_newcomer_comes_soon_however_many_wait_before() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=4, max_waiting=60))
    for number in range(60):
        ask(loop, f"hog{number}", "hog", 400)
    run_for(loop, 1.5)
    asked_at = loop.now
    ask(loop, "other", "other", 10)
    while key("other") not in loop.token_at:
        loop.turn()
    assert loop.token_at[key("other")][0] - asked_at == pytest.approx(1.0, abs=0.9)


@pytest.mark.parametrize("preparing", [0, 1, 5, ROWS, ROWS + 3, ROWS + 4, 40])
def test_what_would_be_refused_is_refused_before_it_is_prepared(preparing: int) -> None:
    """One client fills rows and queue with prompts that are not read yet; another has a place."""
    loop = Loop(facts(), ScheduleSettings(max_rows=ROWS, max_waiting=4))
    coming = [sharer("hog")] * preparing
    refusal = loop.scheduler.intake.full(sharer("hog"), coming)
    assert (refusal is None) == (preparing < ROWS + 4)
    if refusal is not None:
        assert refusal.reason == "queue_full" and refusal.retry_after_s is not None
    of_another_key = loop.scheduler.intake.full(("key", "other"), coming)
    assert of_another_key is None, "it has its share"


@given(st.integers(0, 20), st.integers(0, 20))
def test_requests_on_their_way_count_as_those_that_are_there(here: int, coming: int) -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=ROWS, max_waiting=4))
    placed = [ask(loop, f"one{number}", "hog") for number in range(here)]
    there = sum(isinstance(answer, Placed) for answer in placed)
    refusal = loop.scheduler.intake.full(sharer("hog"), [sharer("hog")] * coming)
    assert (refusal is None) == (there + coming < ROWS + 4)
