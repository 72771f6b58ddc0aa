"""Which microbatch a row joins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runner.mlx.forward import FULL_ROWS, microbatch_for


def filled(count: int, rows: int) -> list[int]:
    lengths = [0] * count
    for _ in range(rows):
        lengths[microbatch_for(lengths)] += 1
    return lengths


def test_few_rows_share_one_microbatch() -> None:
    assert filled(3, FULL_ROWS) == [FULL_ROWS, 0, 0]


def test_a_full_microbatch_opens_the_next() -> None:
    assert filled(3, FULL_ROWS + 1) == [FULL_ROWS, 1, 0]


@given(st.integers(1, 6), st.integers(0, 80))
def test_rows_that_come_together_are_spread_evenly_over_open_microbatches(
    count: int, rows: int
) -> None:
    lengths = filled(count, rows)
    assert sum(lengths) == rows
    if rows >= count * FULL_ROWS:
        assert max(lengths) - min(lengths) <= 1


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_a_row_never_joins_a_longer_open_microbatch_than_it_must(lengths: list[int]) -> None:
    joined = microbatch_for(lengths)
    opened = [length for length in lengths if length]
    assert lengths[joined] == 0 or lengths[joined] == min(lengths[: joined + 1])
    assert not opened or lengths[joined] <= min(opened)
