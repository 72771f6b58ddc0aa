"""Patterns and the look at every element: nothing that is wrong passes."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.mlx.ranks.collective_checks import LOOK, PLACES, look, pattern, pattern_sum

SIZE = 1_000


def damaged(at: int, value: float) -> mx.array:
    values = pattern(1, 0, SIZE).tolist()
    values[at] = value  # pyright: ignore
    return mx.array(values)


def expected(start: int, stop: int) -> mx.array:
    return pattern(1, start, stop)


@given(st.integers(0, SIZE - 1), st.sampled_from([-1.0, 1e9, float("nan"), float("inf")]))
def test_one_wrong_element_anywhere_is_found(at: int, value: float) -> None:
    check = look("x", damaged(at, value), expected)
    assert (check.elements, check.wrong, check.first_wrong) == (SIZE, 1, at)


@given(st.integers(0, SIZE - 2))
def test_two_neighbours_that_changed_places_are_found(at: int) -> None:
    values = pattern(1, 0, SIZE).tolist()
    values[at], values[at + 1] = values[at + 1], values[at]  # pyright: ignore
    assert look("x", mx.array(values), expected).wrong == 2


def test_what_is_right_is_right_beyond_one_piece_and_a_wrong_last_element_is_found() -> None:
    size = LOOK + 5
    whole = pattern(0, 0, size)
    assert look("x", whole, lambda start, stop: pattern(0, start, stop)).wrong == 0
    broken = mx.concatenate([whole[:-1], mx.array([-1.0])])
    check = look("x", broken, lambda start, stop: pattern(0, start, stop))
    assert (check.wrong, check.first_wrong) == (1, size - 1)


def test_another_rank_and_another_place_have_another_value() -> None:
    size = 4_096
    for rank in range(1, 4):
        assert not mx.any(pattern(0, 0, size) == pattern(rank, 0, size)).item()
    assert not mx.any(pattern(0, 0, size) == pattern(0, 1, size + 1)).item()
    assert len(set(pattern(0, 0, PLACES).tolist())) == PLACES  # pyright: ignore


@pytest.mark.parametrize("ranks", [2, 16, 256])
def test_a_sum_is_a_whole_number_that_float32_holds_in_any_order(ranks: int) -> None:
    total = pattern_sum(ranks, 0, 2_000)
    backwards = pattern(ranks - 1, 0, 2_000)
    for rank in reversed(range(ranks - 1)):
        backwards = backwards + pattern(rank, 0, 2_000)
    assert mx.array_equal(total, backwards).item()
    assert mx.max(total).item() < 1 << 24  # pyright: ignore
