"""The slab, held against mlx-lm's own batch cache through random lives of a batch."""

from __future__ import annotations

import random

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import BatchKVCache, KVCache, RotatingKVCache

from runner.engine import RowId
from runner.mlx.kv.batch import DecodeBatch
from runner.mlx.kv.codec import FULL_WIDTH
from runner.mlx.kv.kv_slab import SlabKV
from runner.mlx.kv.padded_batch import GroupKV, GroupShape
from runner.mlx.kv.row_kv import RowKV, causal_mask

HEADS, WIDTH = 2, 4


def noise(*shape: int) -> mx.array:
    return mx.random.normal(shape)


def attended(cache, keys, values, queries, window=None):
    """What attention over a cache gives after one more token."""
    mask = cache.make_mask(1, window_size=window)
    all_keys, all_values = cache.update_and_fetch(keys, values)
    return mx.fast.scaled_dot_product_attention(queries, all_keys, all_values, scale=0.5, mask=mask)


class Oracle:
    """The same life in a BatchKVCache, whose rows are in order of joining."""

    def __init__(self) -> None:
        self.rows: list[RowId] = []
        self.cache: BatchKVCache | None = None

    def join(self, row, keys, values):
        own = KVCache()
        own.update_and_fetch(keys, values)
        self.rows.append(row)
        if self.cache is None:
            self.cache = KVCache.merge([own])
        else:
            self.cache.extend(KVCache.merge([own]))

    def leave(self, row):
        at = self.rows.index(row)
        self.rows.pop(at)
        if not self.rows:
            self.cache = None
        else:
            self.cache.filter([i for i in range(len(self.rows) + 1) if i != at])


@pytest.mark.parametrize("seed", range(6))
def test_a_slab_sees_what_a_batch_cache_sees_through_joins_leaves_and_growth(seed):
    chance = random.Random(seed)
    mx.random.seed(seed)
    batch, oracle = DecodeBatch([FULL_WIDTH]), Oracle()
    slab = batch.layers[0]
    assert isinstance(slab, SlabKV)
    window = chance.choice((None, 9))
    count = 0
    most_holes = 0
    for _ in range(150):
        for row in list(oracle.rows):
            if chance.random() < 0.04:
                batch.leave([row])
                oracle.leave(row)
        while len(oracle.rows) < 7 and chance.random() < 0.35:
            count += 1
            length = chance.choice((1, 3, 20, 21, 90))
            keys, values = noise(1, HEADS, length, WIDTH), noise(1, HEADS, length, WIDTH)
            own = RowKV()
            own.append((keys, values))
            token = mx.array([count])
            batch.join(RowId(count), [own], length, token)
            oracle.join(RowId(count), keys, values)
        if not oracle.rows:
            continue
        most_holes = max(most_holes, batch.holes)
        batch.close_holes()
        slots = [batch.slot_of(row) for row in oracle.rows]
        new = [noise(len(oracle.rows), HEADS, 1, WIDTH) for _ in range(3)]
        wide = [mx.zeros((len(batch), HEADS, 1, WIDTH)) for _ in range(3)]
        for one, many in zip(new, wide, strict=True):
            many[mx.array(slots)] = one
        wanted = attended(oracle.cache, *new, window)
        batch.open_step()
        got = attended(slab, *wide, window)
        assert np.allclose(np.array(got[mx.array(slots)]), np.array(wanted), atol=1e-5)
        offsets = mx.broadcast_to(mx.array(slab.offset), (len(batch),))
        assert offsets[mx.array(slots)].tolist() == (oracle.cache.offset - 1).tolist()
        assert batch.tokens[mx.array(slots)].tolist() == oracle.rows
        batch.close_step(batch.tokens)
    assert count > 20
    assert most_holes > 0


def test_a_row_taken_out_of_the_slab_is_the_row():
    batch = DecodeBatch([FULL_WIDTH])
    pasts = [noise(1, HEADS, n, WIDTH) for n in (5, 40, 17)]
    for index, past in enumerate(pasts):
        own = RowKV()
        own.append((past, past * 2))
        batch.join(RowId(index), [own], past.shape[2], mx.array([index]))
    batch.leave([RowId(0)])
    for index in (1, 2):
        (own,), token = batch.take(RowId(index))
        assert token.tolist() == [index]
        assert mx.array_equal(own.parts[0], pasts[index])
        assert mx.array_equal(own.parts[1], pasts[index] * 2)


def test_rotating_caches_of_one_row_and_of_many_agree():
    mx.random.seed(4)
    batch = DecodeBatch([None])
    alone = []
    for index, length in enumerate((3, 30)):
        past = noise(1, HEADS, length, WIDTH)
        pair = []
        for _ in range(2):
            own = RotatingKVCache(max_size=8)
            own.update_and_fetch(past, past)
            pair.append(own)
        alone.append(pair[0])
        batch.join(RowId(index), [pair[1]], length, mx.array([index]))
    for step in range(12):
        new = noise(2, HEADS, 1, WIDTH)
        batch.open_step()
        got = attended(batch.caches()[0], new, new, new)
        for index, own in enumerate(alone):
            if step < 6 or index == 1:
                one = new[index : index + 1]
                wanted = attended(own, one, one, one)
                assert np.allclose(np.array(got[index]), np.array(wanted[0]), atol=1e-5)
        batch.close_step(batch.tokens)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(
    ("starts", "lengths"), [((0, 0), (4, 9)), ((3, 3), (5, 2)), ((0, 12, 5), (7, 1, 4))]
)
def test_a_group_sees_what_each_of_its_rows_sees_alone(starts, lengths, window):
    mx.random.seed(1)
    together, alone = [], []
    for start in starts:
        past = noise(1, HEADS, start, WIDTH) if start else None
        for rows in (together, alone):
            rows.append(RowKV(reserve=30))
            if past is not None:
                rows[-1].append((past, past * 2))
    widest = max(lengths)
    chunk = noise(len(starts), HEADS, widest, WIDTH)
    group = GroupKV(GroupShape(starts, lengths), together)
    mask = group.make_mask(widest, window_size=window)
    keys, values = group.update_and_fetch(chunk, chunk * 2)
    got = mx.fast.scaled_dot_product_attention(chunk, keys, values, scale=0.5, mask=mask)
    for index, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        own = chunk[index : index + 1, :, :length]
        keys, values = alone[index].update_and_fetch(own, own * 2)
        wanted = mx.fast.scaled_dot_product_attention(
            own, keys, values, scale=0.5, mask=causal_mask(length, start, window)
        )
        assert np.allclose(np.array(got[index, :, :length]), np.array(wanted[0]), atol=1e-5)
        assert together[index].offset == alone[index].offset == start + length
        assert mx.array_equal(together[index].past()[0], alone[index].past()[0])


def many(count: int) -> DecodeBatch:
    """A batch of so many rows, each of which holds its own number."""
    batch = DecodeBatch([FULL_WIDTH])
    for index in range(count):
        own = RowKV()
        own.append((mx.full((1, HEADS, 5, WIDTH), index), mx.full((1, HEADS, 5, WIDTH), index)))
        batch.join(RowId(index), [own], 5, mx.array([index]))
    return batch


def test_a_batch_lets_go_of_spare_slots_when_it_is_to_and_rows_stay_in_theirs():
    batch = many(16)
    batch.open_step()
    whole = batch.nbytes
    batch.leave([RowId(14), RowId(15), RowId(3)])
    batch.open_step()
    assert batch.nbytes == whole, "so that a row that comes finds a place"
    batch.ease()
    batch.open_step()
    assert batch.nbytes == whole * 14 // 16
    assert batch.rows == [RowId(n) if n != 3 else None for n in range(14)]
    for index in (0, 7, 13):
        (own,), token = batch.take(RowId(index))
        assert token.tolist() == [index]
        assert mx.array_equal(own.parts[0], mx.full((1, HEADS, 5, WIDTH), index))
    batch.leave([RowId(13)])
    batch.open_step()
    assert batch.nbytes == whole * 14 // 16, "once"


def test_a_batch_that_is_eased_before_rows_leave_lets_go_when_they_do():
    batch = many(12)
    batch.open_step()
    whole = batch.nbytes
    batch.ease()
    batch.open_step()
    assert batch.nbytes == whole
    batch.leave([RowId(10), RowId(11)])
    batch.open_step()
    assert batch.nbytes == whole * 10 // 12
