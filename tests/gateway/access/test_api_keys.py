"""What a key may ask for: budgets over simulated time, at one process and at several."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.api_keys import KeyLimits
from bus.wire.ids import NodeId
from bus.wire.messages.gateways import KeyUseReading
from gateway.access.budgets import (
    DAY_S,
    NO_USE,
    KeyBudgets,
    KeyTotals,
    OverBudget,
    day_of,
    used_elsewhere,
)

KEY = "key-00000001"
NOON_S = 20_000 * DAY_S + DAY_S / 2
EVENTS = st.lists(
    st.tuples(st.floats(0.0, 8.0), st.sampled_from(["ask", "ask", "ask", "end"])), max_size=200
)


class Process:
    """The budgets of one process, with a clock and what others have told it."""

    def __init__(self, name: str, limits: KeyLimits) -> None:
        self.own, self.limits = (NodeId(name), "gateway:0"), limits
        self.budgets = KeyBudgets()
        self.now, self.wall_s = 1000.0, NOON_S
        self.heard: dict[str, KeyUseReading] = {}
        self.admitted: list[float] = []
        self.running = 0

    def later(self, seconds: float) -> None:
        self.now, self.wall_s = self.now + seconds, self.wall_s + seconds

    def ask(self, *, counted: bool = False) -> OverBudget | None:
        told = [(reading, 0.0) for reading in self.heard.values()]
        elsewhere = used_elsewhere(told, KEY, self.own, day_of(self.wall_s))
        over = self.budgets.over_budget(
            KEY, self.limits, elsewhere, self.now, self.wall_s, counted=counted
        )
        if over is None:
            self.budgets.came(KEY, self.now, self.wall_s, counted=counted)
            self.admitted.append(self.now)
            self.running += 1
        return over

    def end(self, tokens: int = 0) -> None:
        if not self.running:
            return
        self.running -= 1
        self.budgets.left(KEY)
        spent: Callable[[], int] = lambda: tokens  # noqa: E731 - it is compared by identity
        self.budgets.spends(KEY, spent)
        self.budgets.spent(KEY, spent, self.wall_s)

    def tell(self, *others: Process) -> None:
        reading = KeyUseReading(
            node=self.own[0], process=self.own[1], day=day_of(self.wall_s),
            uses=self.budgets.uses(self.now, self.wall_s),
        )  # fmt: skip
        for other in others:
            other.heard[self.own[0]] = reading


@given(EVENTS, st.integers(1, 6))
def test_in_no_minute_are_more_requests_than_the_limit_and_the_wait_told_is_enough(
    events: list[tuple[float, str]], most: int
) -> None:
    one = Process("n1", KeyLimits(requests_per_minute=most))
    for seconds, what in events:
        one.later(seconds)
        over = one.ask() if what == "ask" else one.end()
        if over is not None:
            assert over.code == "rate_limit_exceeded" and over.limit == most
            assert 0.0 < over.retry_after_s <= 61.0
            later = deepcopy(one.budgets)
            assert later.totals(KEY, one.now + over.retry_after_s, one.wall_s).requests < most
    for at in one.admitted:
        assert sum(at <= other < at + 60.0 for other in one.admitted) <= most


def test_a_minute_lets_as_many_in_as_it_may() -> None:
    one = Process("n1", KeyLimits(requests_per_minute=30))
    for _ in range(600):
        one.later(1.0)
        one.ask()
    assert 30 * 9 <= len(one.admitted) <= 30 * 10


def test_what_was_counted_when_it_was_submitted_runs_though_the_minute_is_full() -> None:
    one = Process("n1", KeyLimits(requests_per_minute=1, concurrent=1))
    assert one.ask() is None
    one.end()
    over = one.ask()
    assert over is not None and over.code == "rate_limit_exceeded"
    assert one.ask(counted=True) is None
    over = one.ask(counted=True)
    assert over is not None and over.code == "concurrency_limit_exceeded"
    assert one.budgets.totals(KEY, one.now, one.wall_s).requests == 1


@given(EVENTS, st.integers(1, 4))
def test_no_more_run_than_may_and_each_end_makes_room(
    events: list[tuple[float, str]], most: int
) -> None:
    one = Process("n1", KeyLimits(concurrent=most))
    for _, what in events:
        if what == "end":
            one.end()
            continue
        was = one.running
        over = one.ask()
        assert (over is None) == (was < most)
        if over is not None:
            assert (over.code, over.retry_after_s) == ("concurrency_limit_exceeded", 1.0)


@given(st.lists(st.tuples(st.floats(0.0, DAY_S), st.integers(0, 400)), max_size=60))
def test_a_day_of_utc_has_at_most_the_limit_and_what_its_last_request_used(
    answers: list[tuple[float, int]],
) -> None:
    one = Process("n1", KeyLimits(tokens_per_day=1000))
    used: dict[int, int] = {}
    for seconds, tokens in answers:
        one.later(seconds)
        day = day_of(one.wall_s)
        over = one.ask()
        assert (over is None) == (used.get(day, 0) < 1000)
        if over is not None:
            assert over.code == "token_quota_exceeded"
            assert day_of(one.wall_s + over.retry_after_s) == day + 1
        else:
            one.end(tokens)
            used[day] = used.get(day, 0) + tokens
    assert all(total < 1000 + 400 for total in used.values())


def test_tokens_of_what_still_runs_count() -> None:
    one, used = Process("n1", KeyLimits(tokens_per_day=100)), 0
    assert one.ask() is None

    def spent() -> int:
        return used

    one.budgets.spends(KEY, spent)
    assert one.ask() is None
    used = 100
    assert isinstance(one.ask(), OverBudget)
    one.budgets.spent(KEY, spent, one.wall_s)
    assert one.budgets.totals(KEY, one.now, one.wall_s).tokens == 100


@given(EVENTS, st.integers(2, 3))
def test_processes_that_hear_of_each_other_at_once_keep_the_sum_at_the_limit(
    events: list[tuple[float, str]], count: int
) -> None:
    limits = KeyLimits(requests_per_minute=5, concurrent=4)
    those = [Process(f"n{n}", limits) for n in range(count)]
    for turn, (seconds, what) in enumerate(events):
        for one in those:
            one.later(seconds)
        asked = those[turn % count]
        _ = asked.ask() if what == "ask" else asked.end()
        for one in those:
            one.tell(*(other for other in those if other is not one))
        assert sum(one.running for one in those) <= 4
    every = sorted(at for one in those for at in one.admitted)
    for at in every:
        assert sum(at <= other < at + 60.0 for other in every) <= 5


def test_what_comes_to_several_before_they_hear_of_each_other_is_at_most_a_limit_for_each() -> None:
    those = [Process(f"n{n}", KeyLimits(requests_per_minute=5)) for n in range(3)]
    for one in those:
        while one.ask() is None:
            pass
    assert sum(len(one.admitted) for one in those) == 15
    for one in those:
        one.tell(*(other for other in those if other is not one))
        one.later(1.0)
    refused = [one.ask() for one in those]
    assert all(isinstance(one, OverBudget) for one in refused)


def test_a_process_that_fell_silent_takes_no_places_and_its_tokens_stay_used() -> None:
    other = Process("n2", KeyLimits(tokens_per_day=10))
    other.ask(), other.end(7), other.ask()
    one = Process("n1", other.limits)
    other.tell(one)
    [reading] = one.heard.values()
    day = day_of(one.wall_s)
    fresh = used_elsewhere([(reading, 1.0)], KEY, one.own, day)
    assert (fresh.running, fresh.requests, fresh.tokens) == (1, 2, 7)
    silent = used_elsewhere([(reading, 16.0)], KEY, one.own, day)
    assert (silent.running, silent.requests, silent.tokens) == (0, 0, 7)
    assert used_elsewhere([(reading, 1.0)], KEY, one.own, day + 1).tokens == 0
    assert used_elsewhere([(reading, 1.0)], KEY, other.own, day) == NO_USE, "its own is no other's"


def test_a_restarted_process_goes_on_from_what_the_one_before_had_counted() -> None:
    before = Process("n1", KeyLimits(tokens_per_day=100))
    before.ask(), before.end(100)
    after = Process("n1", before.limits)
    before.tell(after)
    [reading] = after.heard.values()
    after.budgets.take_over(reading, after.wall_s)
    over = after.ask()
    assert over is not None and over.code == "token_quota_exceeded"
    assert after.budgets.totals(KEY, 0.0, 0.0).used_at_s == pytest.approx(before.wall_s)
    after.later(DAY_S)
    assert after.ask() is None
    stale = Process("n1", before.limits)
    stale.later(DAY_S)
    stale.budgets.take_over(reading, stale.wall_s)
    assert stale.ask() is None, "yesterday's tokens were yesterday's"


def test_a_key_that_is_gone_is_forgotten_once_nothing_of_it_runs() -> None:
    one = Process("n1", KeyLimits())
    one.ask()
    one.budgets.forget_others([])
    assert one.budgets.totals(KEY, one.now, one.wall_s).running == 1
    one.end()
    one.budgets.forget_others([])
    assert one.budgets.uses(one.now, one.wall_s) == ()


def test_totals_of_several_are_added_and_the_last_use_is_the_latest() -> None:
    assert KeyTotals(1, 2, 3, 4.0) + KeyTotals(1, 1, 1, 3.0) == KeyTotals(2, 3, 4, 4.0)
