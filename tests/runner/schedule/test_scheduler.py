"""The scheduler as traces and properties: it never starves, never exceeds, never loses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.errors import Refusal
from bus.wire.ids import RequestId
from runner.schedule.rows import RowFailed, RowFinished, RowKey
from runner.schedule.scheduler import Placed
from runner.schedule.table import ScheduleSettings
from tests.harness.engine import facts, whole_output
from tests.harness.scheduling import Loop, prepared


def key(name: str, choice: int = 0) -> RowKey:
    return RowKey(RequestId(name), choice)


def prompt(length: int, salt: int = 1) -> list[int]:
    return [(salt * 31 + position * 7) % 61 + 2 for position in range(length)]


def test_a_request_runs_to_its_length_and_leaves_nothing_behind() -> None:
    loop = Loop(facts())
    assert loop.submit(prepared("a", prompt(10), max_tokens=5)) == Placed(0)
    loop.run()
    assert loop.made[key("a")] == whole_output(100, prompt(10), 5, frozenset())
    end = loop.ends[key("a")]
    assert isinstance(end, RowFinished)
    assert end.finish == "length"
    assert end.cost.completion_tokens == 5
    assert loop.scheduler.is_empty
    assert not loop.engine.rows


def test_a_stop_token_ends_a_row_and_its_wasted_step_is_thrown_away() -> None:
    undisturbed = whole_output(100, prompt(10), 9, frozenset())
    stops = frozenset({undisturbed[3]})
    loop = Loop(facts())
    loop.submit(prepared("a", prompt(10), max_tokens=9, stops=stops))
    loop.run()
    assert loop.made[key("a")] == whole_output(100, prompt(10), 9, stops)
    end = loop.ends[key("a")]
    assert isinstance(end, RowFinished)
    assert end.finish == "stop"


def test_a_row_whose_last_token_is_a_stop_ends_once() -> None:
    undisturbed = whole_output(100, prompt(10), 4, frozenset())
    loop = Loop(facts())
    loop.submit(prepared("a", prompt(10), max_tokens=4, stops=frozenset({undisturbed[3]})))
    loop.run()
    end = loop.ends[key("a")]
    assert isinstance(end, RowFinished) and end.finish == "stop"
    assert loop.made[key("a")] == undisturbed


def test_the_next_step_is_planned_before_the_last_is_read() -> None:
    loop = Loop(facts())
    loop.submit(prepared("a", prompt(10), max_tokens=4))
    first, _ = loop.scheduler.plan(0.0)
    second, _ = loop.scheduler.plan(0.0)
    third, _ = loop.scheduler.plan(0.0)
    assert first is not None
    assert second is not None
    assert third is None
    assert len(first.prefill) == 1
    assert second.decode == (first.admit[0].row,)


def test_a_row_bound_by_length_wastes_no_step() -> None:
    loop = Loop(facts())
    loop.submit(prepared("a", prompt(10), max_tokens=4))
    loop.run()
    assert sum(len(plan.decode) for plan in loop.plans) == 3


def test_a_full_queue_refuses_with_position_and_time() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=2, max_waiting=3))
    answers = [loop.submit(prepared(f"r{index}", prompt(9), max_tokens=4)) for index in range(6)]
    assert answers[:5] == [Placed(0), Placed(0), Placed(0), Placed(1), Placed(2)]
    refusal = answers[5]
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "queue_full"
    assert refusal.position == 3
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s >= 1.0
    loop.run()
    assert len(loop.ends) == 5


def test_who_is_refused_is_told_when_the_first_running_row_ends_however_long_it_was_idle() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=2, max_waiting=0))
    loop.submit(prepared("before", prompt(9), max_tokens=200))
    loop.run()
    loop.now += 1000.0
    for name, most in (("short", 200), ("long", 4000)):
        loop.submit(prepared(name, prompt(9), max_tokens=most))
    for _ in range(20):
        loop.turn()
    refusal = loop.submit(prepared("late", prompt(9), max_tokens=4))
    assert isinstance(refusal, Refusal) and refusal.retry_after_s is not None
    told_at = loop.now
    while key("short") not in loop.ends:
        loop.turn()
    assert refusal.retry_after_s == pytest.approx(max(loop.now - told_at, 1.0), rel=0.3)


def test_who_is_refused_waits_for_a_row_that_runs_and_not_for_a_short_one_that_waits() -> None:
    def retry_s(waiting_tokens: int) -> float:
        loop = Loop(facts(), ScheduleSettings(max_rows=1, max_waiting=1))
        loop.submit(prepared("before", prompt(9), max_tokens=200))
        loop.run()
        loop.submit(prepared("runs", prompt(9), max_tokens=200))
        for _ in range(20):
            loop.turn()
        loop.submit(prepared("waits", prompt(9), max_tokens=waiting_tokens))
        refusal = loop.submit(prepared("late", prompt(9), max_tokens=4))
        assert isinstance(refusal, Refusal) and refusal.retry_after_s is not None
        return refusal.retry_after_s

    assert retry_s(2) == retry_s(200) > 1.0


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers() -> None:
    loop = Loop(facts(kv_bytes=100, context_tokens=200))
    too_long = loop.submit(prepared("a", prompt(199), max_tokens=8))
    too_big = loop.submit(prepared("b", prompt(95), max_tokens=8))
    assert isinstance(too_long, Refusal)
    assert too_long.reason == "context_length"
    assert isinstance(too_big, Refusal)
    assert too_big.reason == "insufficient_memory"
    assert too_big.facts["limit_bytes"] == 90
    without_room = Loop(facts(kv_bytes=-500)).submit(prepared("c", prompt(9), max_tokens=8))
    assert isinstance(without_room, Refusal), "the weights alone are beyond the limit"
    assert without_room.facts["limit_bytes"] == 0


def test_priority_goes_before_age_and_age_before_nothing() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=1, max_waiting=9))
    for name, priority in (("first", 10), ("low", 50), ("normal", 10), ("urgent", 1)):
        loop.submit(prepared(name, prompt(9), max_tokens=3, priority=priority))
    loop.run()
    assert [row.request_id for row in loop.ends] == ["urgent", "first", "normal", "low"]


def test_an_old_low_row_is_promoted_past_a_stream_of_urgent_ones() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=1, max_waiting=50, promote_after_s=1.0))
    loop.submit(prepared("low", prompt(9), max_tokens=3, priority=50))
    sent = 0

    def keep_urging() -> None:
        nonlocal sent
        while len(loop.ends) < 200 and sent < len(loop.ends) + 3:
            loop.submit(prepared(f"u{sent}", prompt(9), max_tokens=8, priority=1))
            sent += 1

    keep_urging()
    loop.on_step = keep_urging
    loop.run()
    row_cost = loop.ends[key("low")].cost
    assert 0.9 < row_cost.queue_s < 1.6


def test_short_memory_preempts_the_youngest_and_its_tokens_stay_the_same() -> None:
    loop = Loop(facts(kv_bytes=2000), ScheduleSettings(prefix_bytes=0, headroom_tokens=64))
    for name in ("old", "young"):
        loop.submit(prepared(name, prompt(700, salt=len(name)), max_tokens=300))
    loop.run()
    assert any(plan.preempt for plan in loop.plans)
    for name in ("old", "young"):
        expected = whole_output(100, prompt(700, salt=len(name)), 300, frozenset())
        assert loop.made[key(name)] == expected
    assert list(loop.ends) == [key("old"), key("young")]


def test_an_urgent_newcomer_takes_memory_from_lower_rows_only() -> None:
    loop = Loop(facts(kv_bytes=1000), ScheduleSettings(prefix_bytes=0))
    loop.submit(prepared("low", prompt(400, 1), max_tokens=200, priority=50))
    for _ in range(6):
        loop.turn()
    loop.submit(prepared("equal", prompt(400, 2), max_tokens=100, priority=50))
    loop.turn()
    assert not any(plan.preempt for plan in loop.plans)
    loop.submit(prepared("urgent", prompt(400, 3), max_tokens=100, priority=1))
    loop.run()
    assert list(loop.ends) == [key("urgent"), key("low"), key("equal")]
    assert loop.made[key("low")] == whole_output(100, prompt(400, 1), 200, frozenset())


def test_choices_of_one_request_compute_their_prompt_once() -> None:
    for trims in (True, False):
        loop = Loop(facts(trims=trims))
        loop.submit(prepared("a", prompt(1000), n=4, max_tokens=5))
        loop.run()
        assert 1000 <= loop.engine.computed_tokens <= 1000 + 3 * 64
        for choice in range(4):
            expected = whole_output(100 + choice, prompt(1000), 5, frozenset())
            assert loop.made[key("a", choice)] == expected


def test_a_later_turn_of_a_conversation_starts_from_the_former_ones_output() -> None:
    loop = Loop(facts())
    loop.submit(prepared("first", prompt(300), max_tokens=100))
    loop.run()
    conversation = [*prompt(300), *loop.made[key("first")]]
    loop.submit(prepared("second", [*conversation, 5, 6, 7], max_tokens=4))
    loop.run()
    cost = loop.ends[key("second")].cost
    assert cost.cached_tokens == 399
    assert len(loop.engine.kept) == 1


def test_an_exact_repeat_computes_one_token() -> None:
    for trims in (True, False):
        loop = Loop(facts(trims=trims))
        for name in ("first", "again"):
            loop.submit(prepared(name, prompt(500), max_tokens=4))
            loop.run()
        assert loop.ends[key("again")].cost.cached_tokens == 499
        assert loop.made[key("again")] == loop.made[key("first")]


def test_a_paused_row_waits_without_decoding_and_fails_after_a_minute() -> None:
    loop = Loop(facts())
    loop.submit(prepared("slow", prompt(9), max_tokens=50))
    loop.submit(prepared("fast", prompt(9), max_tokens=50))
    loop.turn()
    loop.scheduler.pause(key("slow"), loop.now)
    loop.run()
    assert isinstance(loop.ends[key("fast")], RowFinished)
    end = loop.ends[key("slow")]
    assert isinstance(end, RowFailed)
    assert end.reason == "deadline"
    assert len(loop.made[key("slow")]) == 1
    assert loop.now == pytest.approx(60.0, abs=1.0)


def test_a_paused_row_gives_its_place_to_one_that_waits_and_comes_back() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=1))
    loop.submit(prepared("slow", prompt(9), max_tokens=20))
    for _ in range(5):
        loop.turn()
    loop.scheduler.pause(key("slow"), loop.now)
    loop.submit(prepared("other", prompt(30), max_tokens=20))
    while key("other") not in loop.ends:
        if not loop.turn():
            loop.now += 0.1
    assert key("slow") not in loop.ends
    loop.scheduler.resume(key("slow"))
    loop.run()
    assert loop.made[key("slow")] == whole_output(100, prompt(9), 20, frozenset())


def test_a_paused_row_keeps_its_place_for_a_grace() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=1, paused_grace_s=20.0))
    loop.submit(prepared("slow", prompt(9), max_tokens=20))
    for _ in range(5):
        loop.turn()
    paused_at = loop.now = 8.0
    loop.scheduler.pause(key("slow"), paused_at)
    loop.submit(prepared("other", prompt(9), max_tokens=20))
    for _ in range(20):
        loop.turn()
    loop.now = paused_at + 19.9
    for _ in range(20):
        loop.turn()
    assert loop.now < paused_at + 20.0
    assert key("other") not in loop.made
    loop.now = paused_at + 20.0
    loop.scheduler.pause(key("slow"), loop.now)  # once more: it is paused since the first time
    while key("other") not in loop.ends:
        assert loop.turn()
    assert key("slow") not in loop.ends


def test_a_deadline_ends_waiting_and_running_rows() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=1))
    loop.submit(prepared("running", prompt(9), max_tokens=2000), deadline_at=1.0)
    loop.submit(prepared("waiting", prompt(9), max_tokens=2000), deadline_at=0.5)
    loop.run()
    for name, at in (("running", 1.0), ("waiting", 0.5)):
        end = loop.ends[key(name)]
        assert isinstance(end, RowFailed)
        assert end.reason == "deadline"
        assert end.cost.queue_s + end.cost.prefill_s + end.cost.decode_s < at + 0.1
    assert not loop.engine.rows


def test_one_failing_row_fails_alone() -> None:
    loop = Loop(facts())
    for name in ("good", "bad", "fine"):
        loop.submit(prepared(name, prompt(9, len(name)), max_tokens=20))
    loop.turn()
    loop.engine.failing.add(loop.plans[0].admit[1].row)
    loop.run()
    bad = loop.ends[key("bad")]
    assert isinstance(bad, RowFailed)
    assert bad.message == "told to fail"
    for name in ("good", "fine"):
        expected = whole_output(100, prompt(9, len(name)), 20, frozenset())
        assert loop.made[key(name)] == expected


def test_a_model_that_cannot_batch_runs_one_row_at_a_time() -> None:
    loop = Loop(facts(batches_ragged=False))
    for name in ("a", "b", "c"):
        loop.submit(prepared(name, prompt(9, ord(name)), max_tokens=6))
    loop.run()
    assert len(loop.ends) == 3


def test_a_repeated_request_is_a_conflict() -> None:
    loop = Loop(facts())
    loop.submit(prepared("a", prompt(9)))
    again = loop.submit(prepared("a", prompt(9)))
    assert isinstance(again, Refusal)
    assert again.reason == "conflict"


@st.composite
def storms(draw: st.DrawFn) -> list[tuple[int, str, int, int, int, int]]:
    """(turn, act, request, prompt length, max tokens, priority) of a busy day."""
    acts = st.sampled_from(["submit"] * 6 + ["cancel", "pause", "resume", "stop", "fail"])
    count = draw(st.integers(5, 40))
    return [
        (
            draw(st.integers(0, 60)),
            draw(acts),
            draw(st.integers(0, 20)),
            draw(st.sampled_from([1, 5, 63, 64, 65, 130, 200, 400])),
            draw(st.integers(1, 60)),
            draw(st.sampled_from([1, 5, 10, 20, 50])),
        )
        for _ in range(count)
    ]


@settings(max_examples=60)
@given(
    storm=storms(),
    kv_bytes=st.sampled_from([700, 1500, 4000, 1 << 20]),
    trims=st.booleans(),
    ragged=st.booleans(),
    share=st.sampled_from([0.3, 0.7, 0.9]),
    salts=st.integers(1, 3),
    clients=st.integers(1, 4),
)
def test_whatever_happens_every_row_ends_once_with_the_right_tokens(
    storm: list[tuple[int, str, int, int, int, int]],
    kv_bytes: int,
    trims: bool,
    ragged: bool,
    share: float,
    salts: int,
    clients: int,
) -> None:
    loop = Loop(
        facts(kv_bytes=kv_bytes, trims=trims, batches_ragged=ragged),
        ScheduleSettings(
            max_rows=5,
            headroom_tokens=32,
            prefill_share=share,
            prefix_bytes=kv_bytes // 3,
            give_way_s=0.1,
            look_s=0.02,
        ),
    )
    asked = {}
    disturbed: set[str] = set()

    def act(what: str, number: int, length: int, most: int, priority: int) -> None:
        name = f"r{number}"
        if what == "submit" and name not in asked:
            request = prepared(
                name,
                prompt(length, number % salts),
                max_tokens=most,
                n=1 + number % 3,
                priority=priority,
                stops=frozenset({7}),
            )
            sharer = ("", str(number % clients))
            if isinstance(loop.submit(request, sharer=sharer), Placed):
                asked[name] = request
        elif what == "cancel":
            disturbed.add(name)
            loop.take(loop.scheduler.cancel(RequestId(name), loop.now))
        elif what == "pause":
            loop.scheduler.pause(key(name), loop.now)
        elif what == "resume":
            loop.scheduler.resume(key(name))
        elif what == "stop":
            disturbed.add(name)
            loop.take(loop.scheduler.complete(key(name), loop.now))
        elif what == "fail" and loop.engine.rows:
            row_id = sorted(loop.engine.rows)[number % len(loop.engine.rows)]
            loop.engine.failing.add(row_id)
        loop.scheduler.validate_state()

    by_turn: dict[int, list[tuple[str, int, int, int, int]]] = {}
    for turn, *rest in storm:
        by_turn.setdefault(turn, []).append(tuple(rest))  # type: ignore[arg-type]
    for turn in range(61):
        for todo in by_turn.get(turn, ()):
            act(*todo)
        loop.turn()
    loop.run()
    assert loop.scheduler.is_empty
    assert not loop.engine.rows
    for name, request in asked.items():
        for choice in request.choices:
            row = key(name, choice.choice)
            expected = whole_output(
                100 + choice.choice, request.tokens, request.max_tokens, request.stop_token_ids
            )
            made, end = loop.made.get(row, []), loop.ends[row]
            assert made == expected[: len(made)]
            if isinstance(end, RowFinished) and name not in disturbed:
                assert made == expected
            if isinstance(end, RowFailed):
                assert end.reason in ("internal", "deadline", "memory_pressure")
