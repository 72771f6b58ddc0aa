"""How long drafts are, and where there are any."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.messages.requests import Speculate
from runner.schedule.drafting import (
    again_of,
    best_length,
    costs_of,
    draft_rules,
    worth_waiting,
)
from runner.schedule.drafting.length import LENGTHS
from tests.harness.engine import facts


def seconds(column_s: float) -> list[float]:
    """What steps take that verify drafts of each length, against a second for a plain one."""
    return [1.0 + column_s * length for length in LENGTHS]


def test_no_draft_pays_if_its_tokens_are_seldom_right_or_columns_are_dear() -> None:
    assert best_length([0.9] * 32, 1.0, seconds(1.0)) == (0, 1.0)
    assert best_length([0.05] * 32, 1.0, seconds(0.1))[0] == 0


@given(st.floats(0.0, 1.0), st.floats(0.01, 1.0))
def test_the_best_length_is_the_best_of_all(rate: float, column_s: float) -> None:
    length, gain = best_length([rate] * 32, 1.0, seconds(column_s))
    expected = {
        number: sum(rate**power for power in range(number + 1)) / (1.0 + column_s * number)
        for number in (0, *LENGTHS)
    }
    if length:
        assert abs(gain - max(expected.values())) < 1e-6
    else:
        assert max(expected.values()) <= 1.05 + 1e-6


@given(st.lists(st.floats(0.0, 1.0), min_size=32, max_size=32), st.floats(0.01, 0.3))
def test_what_is_computed_again_counts_as_often_as_a_draft_is_wrong(
    rates: list[float], column_s: float
) -> None:
    """Against the sum over all outcomes of a draft."""
    again = again_of([(33, 1.0 + 32 * column_s)])
    assert again == pytest.approx([column_s * (1 + at) for at in range(32)])
    gains = {0: 1.0}
    for length in LENGTHS:
        tokens, cost, chance = 0.0, 1.0 + column_s * length, 1.0
        for right in range(length):
            wrong = chance * (1.0 - rates[right])
            tokens += wrong * (right + 1)
            cost += wrong * column_s * (right + 1)
            chance *= rates[right]
        gains[length] = (tokens + chance * (length + 1)) / cost
    length, gain = best_length(rates, 1.0, seconds(column_s), again)
    assert gain == pytest.approx(gains[length])
    if not length:
        assert max(gains.values()) <= 1.05 + 1e-6


def test_costs_are_interpolated_and_continued() -> None:
    assert costs_of([(2, 1.5), (33, 4.6)]) == pytest.approx(
        [1.5 + 0.1 * (length - 1) for length in LENGTHS]
    )
    assert costs_of([]) == pytest.approx(seconds(0.1))
    assert costs_of([(3, 1.2)]) == pytest.approx([1.1, *seconds(0.1)[1:]])


def test_a_step_is_awaited_only_if_a_good_draft_may_follow() -> None:
    verify_s = seconds(0.1)
    assert worth_waiting([0.9] * 9, 1.0, verify_s)
    assert not worth_waiting([0.9], 1.0, verify_s)
    assert not worth_waiting([0.02, *[0.9] * 8], 1.0, verify_s)


def test_auto_drafts_only_where_the_text_stays_the_same() -> None:
    def why(
        choice: Speculate,
        *,
        is_exact: bool = True,
        verifies: bool = True,
        even: bool = True,
        **extra: Any,
    ) -> str:
        known = {"dtype": "float32", "drafts_exactly": even, **extra}
        loaded = replace(facts(verifies=verifies), extra=known)
        return draft_rules(loaded, is_exact=is_exact)[choice].why_not

    assert why("auto") == ""
    assert "float32" in why("auto", dtype="bfloat16")
    assert "exact" in why("auto", is_exact=False)
    assert "CPU" in why("auto", on_gpu=True)
    assert "rounds differently" in why("auto", even=False)
    assert why("ngram", is_exact=False, dtype="bfloat16", even=False) == ""
    assert why("ngram", verifies=False) != ""
    assert why("off") != ""
