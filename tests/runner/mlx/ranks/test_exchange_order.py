"""One rank's order by itself, against an oracle: what it submits, when, and what raises."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.mlx.ranks.exchange_order import (
    NEXT,
    ExchangeOrder,
    OutOfOrder,
    Signal,
    State,
    Submission,
)

CALLS = ("take_in", "submit", "submit_or_hold", "defer", "flush", "awaited", "settled")


@pytest.mark.parametrize("state", get_args(State))
def test_a_submission_moves_by_the_table_or_raises_and_stays(state: State) -> None:
    for signal in get_args(Signal):
        submission = Submission(["x"], state=state)
        if signal in NEXT[state]:
            submission.signal(signal)
            assert submission.state == NEXT[state][signal]
        else:
            with pytest.raises(OutOfOrder):
                submission.signal(signal)
            assert submission.state == state


def test_what_is_submitted_has_no_way_on_and_everything_leads_there() -> None:
    assert NEXT["submitted"] == {}
    reached = {"submitted"}
    while more := {s for s, ways in NEXT.items() if set(ways.values()) & reached} - reached:
        reached |= more
    assert reached == set(get_args(State))


@dataclass
class Oracle:
    """The same promises, said as plainly as they can be."""

    holds: bool
    arrival: object = None
    held: list[Any] = field(default_factory=list)
    due: list[Any] = field(default_factory=list)
    submitted: list[Any] = field(default_factory=list)

    def allows(self, call: str, array: object) -> bool:
        match call:
            case "take_in" | "defer" | "settled":
                return self.arrival is None
            case "awaited":
                return all(array not in arrays for arrays, _ in self.held)
            case _:
                return True

    def make(self, call: str, array: object) -> None:
        match call:
            case "take_in":
                self.arrival = array
            case "submit" | "submit_or_hold":
                held = call == "submit_or_hold" and self.holds
                if not held:
                    self.flush()
                if array not in self.due or self.arrival:
                    arrays = [] if array in self.due else [array]
                    (self.held if held else self.submitted).append((arrays, self.arrival))
                self.arrival = None
            case "defer":
                self.due.append(array)
            case "flush":
                self.flush()
            case "awaited":
                while array in self.due:
                    self.submit_due()
            case _:
                self.flush()
                while self.due:
                    self.submit_due()

    def flush(self) -> None:
        self.submitted += self.held
        self.held = []

    def submit_due(self) -> None:
        told = self.due.pop(0)
        self.submitted.append(([told], told))


@given(st.booleans(), st.lists(st.tuples(st.sampled_from(CALLS), st.booleans(), st.integers(0, 9))))
def test_any_calls_submit_everything_once_and_in_order_or_raise_and_change_nothing(
    holds: bool, calls: list[tuple[str, bool, int]]
) -> None:
    order, oracle = ExchangeOrder[object, object](holds=holds), Oracle(holds)
    found: list[Any] = []
    built: list[object] = []
    for call, anew, back in [*calls, ("submit", True, 0), ("settled", True, 0)]:
        names_one = call in ("awaited", "submit", "submit_or_hold")
        array = built[-1 - back % len(built)] if built and names_one and not anew else object()
        arguments = {"flush": (), "settled": (), "submit": ([array],), "submit_or_hold": ([array],)}
        method = getattr(order, call)
        if not oracle.allows(call, array):
            with pytest.raises(OutOfOrder):
                method(*arguments.get(call, (array,)))
        else:
            built.append(array)
            given_now = method(*arguments.get(call, (array,))) or []
            assert all(one.state == "submitted" for one in given_now)
            found += [(list(one.arrays), one.arrival) for one in given_now]
            oracle.make(call, array)
        assert found == oracle.submitted
        assert order.arriving == ([] if oracle.arrival is None else [oracle.arrival])
    assert oracle.held == oracle.due == []


def test_what_is_held_cannot_be_awaited_before_a_flush() -> None:
    order = ExchangeOrder[str, str](holds=True)
    assert order.submit_or_hold(["tokens"]) == []
    with pytest.raises(OutOfOrder, match="held"):
        order.awaited("tokens")
    assert [one.arrays for one in order.flush()] == [["tokens"]]
    assert order.awaited("tokens") == [], "it was submitted"


def test_two_arrivals_in_one_submission_are_refused() -> None:
    order = ExchangeOrder[str, str](holds=False)
    order.take_in("first")
    with pytest.raises(OutOfOrder, match="a second receive"):
        order.take_in("second")
    (submission,) = order.submit(["out"])
    assert (submission.arrival, submission.arrays) == ("first", ["out"])


def test_what_is_due_stays_due_when_it_is_submitted_with_other_arrays() -> None:
    order = ExchangeOrder[str, str](holds=False)
    order.defer("tokens")
    assert [one.arrays for one in order.submit(["tokens", "caches"])] == [["caches"]]
    assert order.submit(["tokens"]) == []
    assert [one.arrays for one in order.awaited("tokens")] == [["tokens"]]
