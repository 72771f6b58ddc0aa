from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import ModelId
from master.pool import URGENT, Claim, aged

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
