"""The lengths of drafts of several rows: the best for all, and no row pays for its neighbours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.schedule.drafting import LENGTHS, SharedCosts, best_shared_length, chances_of
from runner.schedule.drafting.together import SHARED_GAIN

COSTS = (1.2, 1.4, 1.6, 1.8, 2.2, 2.6, 3.4, 4.2)
SURE = chances_of([0.98] * 32)
rates = st.lists(st.floats(0.0, 1.0), max_size=32)


def test_rows_that_all_copy_get_long_drafts() -> None:
    length, gain = best_shared_length([SURE] * 4, COSTS, [False] * 4)
    assert length == 16
    assert gain == pytest.approx(sum([1.0, *SURE[:16]]) / 4.2)


def test_a_single_copying_row_does_not_pay_for_sixteen() -> None:
    assert best_shared_length([SURE, *[()] * 15], COSTS, [False] * 16) == (0, 1.0)


def test_a_late_row_must_gain_by_the_step_itself() -> None:
    chances = [SURE, SURE, SURE, ()]
    length, _ = best_shared_length(chances, COSTS, [False] * 4)
    assert length > 3
    assert best_shared_length(chances, COSTS, [False, False, False, True]) == (0, 1.0)
    assert best_shared_length(chances, COSTS, [True, True, True, False])[0] == length


STEP_COSTS = st.floats(1.0, 20.0).map(lambda cost: round(cost, 6))


@given(st.lists(rates, min_size=2, max_size=6), st.data())
def test_no_length_is_better_than_the_best(rows: list[list[float]], data: st.DataObject) -> None:
    chances = [chances_of(of_row) for of_row in rows]
    late = [data.draw(st.booleans()) for _ in rows]
    costs = sorted(data.draw(st.lists(STEP_COSTS, max_size=len(LENGTHS))))

    def expected(length: int) -> list[float]:
        return [1.0 + sum(of_row[:length]) for of_row in chances]

    gains = {0: 1.0}
    for length, cost in zip(LENGTHS, costs, strict=False):
        tokens = expected(length)
        gain = sum(tokens) / len(rows) / cost
        if gain >= SHARED_GAIN and all(
            not is_late or of_row >= cost - 1e-9
            for is_late, of_row in zip(late, tokens, strict=True)
        ):
            gains[length] = gain
    best, most = best_shared_length(chances, costs, late)
    assert most == pytest.approx(gains.get(best, SHARED_GAIN))
    assert most >= max(gains.values()) - 1e-9 or best == 0


def test_costs_lie_between_those_of_the_measured_numbers_of_rows() -> None:
    costs = SharedCosts(
        [(1, ((2, 1.1), (17, 2.5))), (4, ((2, 1.3), (9, 3.2))), (16, ((2, 1.6), (5, 3.2)))]
    )
    assert costs.of(4)[0] == pytest.approx(1.3)
    assert costs.of(4)[LENGTHS.index(8)] == pytest.approx(3.2)
    assert len(costs.of(4)) == LENGTHS.index(8) + 1, "wider steps were not measured"
    assert costs.of(2)[0] == pytest.approx(1.1 + 0.2 / 3)
    assert costs.of(10)[0] == pytest.approx(1.45)
    assert len(costs.of(10)) == len(costs.of(40)) == LENGTHS.index(4) + 1
    assert costs.of(16)[0] < costs.of(40)[0] <= 2.0
    assert costs.of(10**6)[0] == 2.0, "a column costs no more than a plain step"


def test_rows_that_were_not_measured_get_no_drafts() -> None:
    assert SharedCosts([(1, ((2, 1.1),))]).of(4) == ()
    assert SharedCosts([(1, ((2, 1.1),)), (4, ())]).of(4) == ()
