"""A batch of one row takes back a draft in layers that cannot be cut."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache

from runner.engine import RowId
from runner.mlx.kv.batch import DecodeBatch, open_draft_step
from runner.mlx.kv.codec import FULL_WIDTH
from runner.mlx.kv.row_kv import RowKV


def batch_of(*tokens: int) -> DecodeBatch:
    """One row of these tokens and a next input, which is their number. The state of its recurrent
    layer is the sum of its tokens."""
    batch = DecodeBatch([None, FULL_WIDTH])
    batch.join(RowId(1), new_row(tokens), len(tokens), mx.array([len(tokens)]))
    return batch


def new_row(tokens: tuple[int, ...]) -> list[object]:
    state, keys = ArraysCache(1), RowKV()
    state[0] = mx.array([float(sum(tokens))])
    keys.append((as_keys(mx.array([tokens])), as_keys(mx.array([tokens]))))
    return [state, keys]


def as_keys(inputs: mx.array) -> mx.array:
    return inputs.astype(mx.float32)[:, None, :, None]


def compute(batch: DecodeBatch, inputs: mx.array) -> None:
    state, keys = batch.caches()
    state[0] = state[0] + mx.sum(inputs)
    keys.update_and_fetch(as_keys(inputs), as_keys(inputs))


def held(batch: DecodeBatch) -> tuple[float, list[float]]:
    """The sum of the tokens in the recurrent layer, and the tokens in the other."""
    (state, keys), _ = batch.take(RowId(1))
    return state[0].item(), keys.past()[0].flatten().tolist()


def test_a_wrong_guess_takes_all_layers_back_until_the_right_tokens_are_computed_again() -> None:
    batch = batch_of(5, 6)
    compute(batch, open_draft_step(batch, mx.array([[30, 40, 50]])))
    batch.close_draft(mx.array([41]), [2])
    assert held(batch) == (11.0, [5, 6]) and batch.replay.lag == 2
    inputs = open_draft_step(batch, mx.array([[60]]))
    assert inputs.tolist() == [[2, 30, 41, 60]]
    compute(batch, inputs)
    batch.close_draft(mx.array([61]), [1])
    assert held(batch) == (11.0, [5, 6]) and batch.replay.lag == 3
    batch.open_step()
    compute(batch, batch.replay.before(batch.tokens))
    batch.close_step(mx.array([70]))
    assert held(batch) == (11.0 + 2 + 30 + 41 + 61, [5, 6, 2, 30, 41, 61])
    assert batch.replay.lag == 0


def test_a_right_draft_can_be_taken_back_until_the_next_step() -> None:
    batch = batch_of(5, 6)
    bytes_before = batch.nbytes
    compute(batch, open_draft_step(batch, mx.array([[30, 40]])))
    batch.close_draft(mx.array([41]), [3])
    assert held(batch) == (11.0 + 2 + 30 + 40, [5, 6, 2, 30, 40]) and batch.replay.lag == 0
    inputs = batch.replay.until(2)
    assert inputs is not None and inputs.tolist() == [[2]]
    batch.open_step()
    compute(batch, inputs)
    batch.replay.advance(1)
    assert held(batch) == (13.0, [5, 6, 2]) and batch.replay.lag == 2
    assert batch.replay.before(batch.tokens).tolist() == [[30, 40, 41]]
    with pytest.raises(ValueError, match="cannot take back 3 tokens"):
        batch.replay.until(3)
    batch.leave([RowId(1)])
    assert batch.replay.lag == 0 and batch.nbytes < bytes_before


def test_the_saved_state_goes_when_the_row_is_settled() -> None:
    batch = batch_of(5, 6)
    compute(batch, open_draft_step(batch, mx.array([[30]])))
    batch.close_draft(mx.array([31]), [2])
    assert batch.replay.nbytes and batch.replay.until(0) is None
    assert not batch.replay.nbytes
    batch.join(RowId(2), new_row((1,)), 1, mx.array([1]))
    with pytest.raises(ValueError, match="cannot take back 1 tokens"):
        batch.replay.until(1)
    with pytest.raises(ValueError, match="drafts of several rows"):
        open_draft_step(batch, mx.array([[30], [40]]))
