from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from runner.mlx.embedding.batches import batches

LENGTHS = st.lists(st.integers(1, 600), max_size=60)


@given(LENGTHS, st.integers(1, 2000))
def test_each_prompt_is_in_one_batch_and_padding_stays_within_the_budget(
    lengths: list[int], budget: int
) -> None:
    found = batches(lengths, budget)
    assert sorted(number for batch in found for number in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[n] for n in batch) <= budget


@given(LENGTHS, st.integers(1, 2000))
def test_batches_are_filled_shortest_first(lengths: list[int], budget: int) -> None:
    found = batches(lengths, budget)
    order = [lengths[number] for batch in found for number in batch]
    assert order == sorted(order)
    for batch, after in itertools.pairwise(found):
        assert (len(batch) + 1) * lengths[after[0]] > budget


def test_what_is_longer_than_the_budget_is_computed_alone() -> None:
    assert batches([9, 2, 2, 50, 3], 8) == [[1, 2], [4], [0], [3]]
