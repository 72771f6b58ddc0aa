"""A window with sinks, held against attention over everything under the window's mask."""

from __future__ import annotations

import copy
import random

import mlx.core as mx
import numpy as np
import pytest

from runner.engine import RowId
from runner.mlx.kv.batch import DecodeBatch
from runner.mlx.kv.prefixes import PrefixStore, copy_of
from runner.mlx.kv.row_kv import RowKV
from runner.mlx.kv.window import SinkWindow, WindowBatchKV, WindowKV

HEADS, WIDTH = 2, 4
WINDOW = SinkWindow(sinks=3, tokens=8)


def noise(count: int) -> mx.array:
    return mx.random.normal((1, HEADS, count, WIDTH))


def attended(cache, keys, values, queries, narrower=None):
    """What attention over a cache gives for tokens that come next."""
    mask = cache.make_mask(keys.shape[2], window_size=narrower)
    there = cache.update_and_fetch(keys, values)
    return mx.fast.scaled_dot_product_attention(queries, *there, scale=0.5, mask=mask)


class Everything:
    """A row that keeps all of its tokens; what a token sees is said token by token."""

    def __init__(self, narrower=None):
        self.row, self.narrower = RowKV(), narrower

    def attended(self, keys, values, queries):
        count, before = keys.shape[2], self.row.offset
        there = self.row.update_and_fetch(keys, values)
        mask = [
            [
                q <= p
                and (q < WINDOW.sinks or p - q < WINDOW.tokens)
                and (self.narrower is None or p - q < self.narrower)
                for q in range(before + count)
            ]
            for p in range(before, before + count)
        ]
        return mx.fast.scaled_dot_product_attention(queries, *there, scale=0.5, mask=mx.array(mask))


def close(one, other):
    return np.allclose(np.array(one), np.array(other), atol=1e-5)


@pytest.mark.parametrize("narrower", [None, 5])
@pytest.mark.parametrize("seed", range(8))
def test_a_row_sees_its_sinks_and_its_last_tokens_whatever_its_chunks(seed, narrower):
    chance = random.Random(seed)
    mx.random.seed(seed)
    row, whole = WindowKV(WINDOW), Everything(narrower)
    for _ in range(12):
        count = chance.choice((1, 1, 1, 2, 3, 7, 8, 11, 12, 30))
        keys, values, queries = noise(count), noise(count), noise(count)
        found = attended(row, keys, values, queries, narrower)
        assert close(found, whole.attended(keys, values, queries))
        assert row.offset == whole.row.offset
        assert row.size() == min(row.offset, WINDOW.places)
        assert row.nbytes <= WINDOW.places * 2 * HEADS * WIDTH * 4


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_a_batch_see_each_their_own_through_joins_and_leaves(seed):
    chance = random.Random(seed)
    mx.random.seed(seed)
    batch = DecodeBatch([None])
    whole: dict[RowId, Everything] = {}
    for turn in range(60):
        if not whole or (len(whole) < 5 and chance.random() < 0.2):
            own, mirror, length = WindowKV(WINDOW), Everything(), chance.randint(1, 40)
            keys, values = noise(length), noise(length)
            own.update_and_fetch(keys, values)
            mirror.attended(keys, values, noise(length))
            batch.join(RowId(turn), [own], length, mx.array([0]))
            whole[RowId(turn)] = mirror
        elif chance.random() < 0.15:
            gone = chance.choice(list(whole))
            batch.leave([gone])
            del whole[gone]
            if not whole:
                continue
        batch.open_step()
        names = [row for row in batch.rows if row is not None]
        new = [[noise(1) for _ in names] for _ in range(3)]
        keys, values, queries = (mx.concatenate(one) for one in new)
        found = attended(batch.caches()[0], keys, values, queries)
        batch.close_step(mx.zeros((len(names),), mx.int32))
        for at, name in enumerate(names):
            wanted = whole[name].attended(*(one[at] for one in new))
            assert close(found[at : at + 1], wanted)
        taken, _ = batch.take(chance.choice(names))
        assert taken[0].size() <= WINDOW.places
    assert batch.nbytes <= 5 * WINDOW.places * 2 * HEADS * WIDTH * 4


def test_a_row_taken_out_of_a_batch_goes_on_as_if_it_had_never_been_there():
    rows, wholes = [WindowKV(WINDOW) for _ in range(2)], [Everything() for _ in range(2)]
    for row, whole, length in zip(rows, wholes, (2, 29), strict=True):
        keys, values = noise(length), noise(length)
        row.update_and_fetch(keys, values)
        whole.attended(keys, values, noise(length))
    batch = WindowKV.merge(rows)
    assert isinstance(batch, WindowBatchKV)
    new = [[noise(1), noise(1)] for _ in range(3)]
    attended(batch, *(mx.concatenate(one) for one in new))
    for at, whole in enumerate(wholes):
        whole.attended(*(one[at] for one in new))
        row, more = batch.extract(at), [noise(5) for _ in range(3)]
        assert close(attended(row, *more), whole.attended(*more))


def test_a_kept_prefix_is_a_copy_that_can_be_used_whole_alone():
    row, whole = WindowKV(WINDOW), Everything()
    keys, values = noise(20), noise(20)
    row.update_and_fetch(keys, values)
    whole.attended(keys, values, noise(20))
    store = PrefixStore()
    store.keep(1, copy_of([row], 20), 20)
    kept = store.nbytes
    assert kept == WINDOW.places * 2 * HEADS * WIDTH * 4
    for other in (row, store.start(1, 20, 0)[0]):
        mirror, more = copy.deepcopy(whole), [noise(3) for _ in range(3)]
        assert close(attended(other, *more), mirror.attended(*more))
    attended(row, *(noise(9) for _ in range(3)))
    (again,) = store.start(1, 20, 0)
    more = [noise(1) for _ in range(3)]
    assert close(attended(again, *more), whole.attended(*more))
    with pytest.raises(ValueError, match="only be used whole"):
        store.start(1, 19, 0)
