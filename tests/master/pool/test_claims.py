from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.replica.state import ClusterState
from bus.wire.ids import InstanceId, ModelId
from bus.wire.instances import Instance
from bus.wire.pool import Pin
from master.pool import URGENT, Claim, aged, pinned_by

M = ModelId("m")
RATE = 0.5
priorities = st.integers(0, 100)
seconds = st.floats(0, 10_000)


@given(priorities, seconds, st.floats(0, 5))
def test_a_standing_falls_steadily_and_without_a_cliff(p: int, waited: float, more: float) -> None:
    now, later = aged(p, waited, RATE), aged(p, waited + more, RATE)
    assert later <= now <= p
    assert now - later <= RATE * more + 1e-6


@given(priorities, seconds)
def test_nothing_ages_into_the_urgent_class_and_urgent_ones_do_not_age(
    p: int, waited: float
) -> None:
    assert (aged(p, waited, RATE) <= URGENT) == (p <= URGENT)


@given(st.lists(st.tuples(priorities, seconds), min_size=1, max_size=4), priorities, seconds)
def test_a_claim_passes_a_class_exactly_when_its_standing_says_so(
    waiting: list[tuple[int, float]], p: int, later: float
) -> None:
    claim = Claim(M, tuple(waiting))
    at = claim.passes_at(p, RATE)
    now = max(since for _, since in waiting) + later
    if math.isinf(at):
        assert claim.standing(RATE, now) > p
    elif now > at + 1e-3:
        assert claim.standing(RATE, now) <= p + 1e-3


def test_an_old_batch_row_does_not_lend_its_age_to_a_new_normal_one() -> None:
    assert Claim(M, ((50, 0.0), (10, 59.0))).standing(RATE, 60.0) == 9.5


@pytest.mark.parametrize(
    ("priority", "waited_s", "standing"),
    [
        (0, 1e9, 0.0), (1, 1e9, 1.0), (2, 1e9, 2.0), (3, 1.0, 2.5), (3, 2.0, 2.0), (3, 9.0, 2.0),
        (10, 0.0, 10.0), (10, -5.0, 10.0), (10, 4.0, 8.0), (50, 20.0, 40.0), (50, 1e9, 2.0),
    ],
)  # fmt: skip
def test_what_waits_rises_by_a_half_each_second_and_ends_behind_the_urgent(
    priority: int, waited_s: float, standing: float
) -> None:
    assert aged(priority, waited_s, RATE) == standing


@pytest.mark.parametrize(
    ("mine", "other", "rate", "passes_at"),
    [
        (10, 10, RATE, 7.0), (9, 10, RATE, 7.0), (11, 10, RATE, 9.0), (50, 10, RATE, 87.0),
        (50, 2, RATE, 103.0), (50, 1, RATE, math.inf), (2, 1, RATE, math.inf), (1, 1, RATE, 7.0),
        (11, 10, 0.0, math.inf), (10, 10, 0.0, 7.0), (50, 10, 2.0, 27.0),
    ],
)  # fmt: skip
def test_when_a_claim_stands_no_worse_than_a_class_is_known_to_the_second(
    mine: int, other: int, rate: float, passes_at: float
) -> None:
    assert Claim(M, ((mine, 7.0),)).passes_at(other, rate) == passes_at


def test_a_claim_is_as_urgent_and_as_old_as_the_most_of_those_who_wait() -> None:
    claim = Claim(M, ((50, 3.0), (1, 40.0), (10, 8.0)))
    assert (claim.priority, claim.since_at, claim.is_urgent, claim.kind) == (1, 3.0, True, "demand")
    assert claim.standing(RATE, 40.0) == 1.0
    assert claim.passes_at(10, RATE) == 8.0, "and passes a class when the first of them does"
    assert [Claim(M, ((p, 0.0),)).is_urgent for p in (0, 1, 2, 3)] == [True, True, False, False]


def test_who_has_pinned_a_copys_model_is_named() -> None:
    def copy(*, pinned: bool) -> Instance:
        return Instance(
            instance=InstanceId("i"), model=M, shards=(), context_tokens=8, keep_alive_s=1.0,
            pinned=pinned,
        )  # fmt: skip

    def pinned(by: str) -> ClusterState:
        return ClusterState(pins={"m": Pin(model=M, by=by)})

    assert pinned_by(copy(pinned=False), ClusterState()) is None
    assert pinned_by(copy(pinned=True), ClusterState()) == "the preload list or its placement"
    assert pinned_by(copy(pinned=True), pinned("ann")) == "ann"
    assert pinned_by(copy(pinned=False), pinned("")) == "an operator"
