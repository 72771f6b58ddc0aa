"""Rows that accept unlike numbers of drafted tokens, held against rows that are kept alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from runner.engine import RowId
from runner.mlx.kv.batch import ROOM_STEP, DecodeBatch
from runner.mlx.kv.codec import FULL_WIDTH
from runner.mlx.kv.kv_slab import SLACK_TOKENS, SlabKV, SlabShape
from runner.mlx.kv.row_kv import RowKV, causal_mask

HEADS, WIDTH = 2, 4


def noise(*shape: int) -> mx.array:
    return mx.random.normal(shape)


def attended(cache, new: list[mx.array]) -> mx.array:
    """What attention over a cache gives for these new queries, keys and values."""
    queries, keys, values = new
    mask = cache.make_mask(queries.shape[2])
    everything = cache.update_and_fetch(keys, values)
    return mx.fast.scaled_dot_product_attention(queries, *everything, scale=0.5, mask=mask)


@dataclass
class Life:
    """A batch, and each of its rows alone: all keys, of which the values are the double."""

    batch: DecodeBatch
    alone: dict[RowId, mx.array]

    @property
    def slab(self) -> SlabKV:
        (slab,) = self.batch.layers
        assert isinstance(slab, SlabKV)
        return slab

    def join(self, row: RowId, length: int) -> None:
        own, keys = RowKV(), noise(1, HEADS, length, WIDTH)
        own.append((keys, keys * 2))
        self.batch.join(row, [own], length, mx.array([row]))
        self.alone[row] = keys

    def step(self, chance: random.Random, columns: int) -> None:
        """One forward of so many columns, of which each row keeps some by chance."""
        batch, slab = self.batch, self.slab
        self.batch.open_step(columns)
        queries, keys = (noise(len(batch), HEADS, columns, WIDTH) for _ in range(2))
        got = attended(slab, [queries, keys, keys * 2])
        offsets = mx.broadcast_to(mx.array(slab.offset), (len(batch),)).tolist()
        counts = [chance.randint(1, columns) for _ in batch.rows]
        if columns > 1 and chance.random() < 0.2:
            counts = [columns for _ in batch.rows]
        # What a trace sees: the whole slab under a mask.
        shape = batch.shape
        seen = shape.valid(0, shape.room) & (np.arange(shape.room) <= shape.stop)
        for row, past in self.alone.items():
            at = batch.slot_of(row)
            assert offsets[at] == past.shape[2]
            whole = mx.concatenate([past, keys[at : at + 1]], axis=2)
            wanted = mx.fast.scaled_dot_product_attention(
                queries[at : at + 1],
                whole,
                whole * 2,
                scale=0.5,
                mask=causal_mask(columns, past.shape[2], None),
            )
            assert np.allclose(np.array(got[at]), np.array(wanted[0]), atol=1e-5)
            columns_seen = mx.array(np.flatnonzero(seen[at]))
            stored = mx.take(slab.parts[0][at], columns_seen, axis=1)
            assert mx.array_equal(stored, whole[0, :, : past.shape[2] + 1])
            self.alone[row] = whole[:, :, : past.shape[2] + counts[at]]
        if columns > 1:
            batch.close_draft(batch.tokens, counts)
        else:
            batch.close_step(batch.tokens)

    def check_copies(self) -> None:
        for row, keys in self.alone.items():
            (own,), token = self.batch.take(row)
            assert token.tolist() == [row]
            assert mx.array_equal(own.parts[0], keys)
            assert mx.array_equal(own.parts[1], keys * 2)


@pytest.mark.parametrize("seed", range(6))
def test_rows_with_gaps_are_what_they_are_alone(seed: int) -> None:
    chance = random.Random(seed)
    mx.random.seed(seed)
    life = Life(DecodeBatch([FULL_WIDTH]), {})
    batch, count, most_gaps, drafts = life.batch, 0, 0, seed % 3 / 2
    for _ in range(100):
        for row in list(life.alone):
            if chance.random() < 0.04:
                batch.leave([row])
                del life.alone[row]
        while len(life.alone) < 5 and chance.random() < 0.3:
            count += 1
            life.join(RowId(count), chance.choice((1, 3, 20, 21, 90)))
        if not life.alone:
            continue
        if chance.random() < 0.05:
            batch.ease()
        batch.close_holes(at_once=chance.random() < 0.2)
        life.step(chance, chance.randint(2, 9) if chance.random() < drafts else 1)
        gaps = [sum(map(len, ranges)) for ranges in batch.shape.gaps.values()]
        most_gaps = max([most_gaps, *gaps])
        assert most_gaps < SLACK_TOKENS + ROOM_STEP, "they take no more than spare room"
        if chance.random() < 0.1:
            life.check_copies()
    life.check_copies()
    assert count > 5
    assert (most_gaps > 10) == (drafts > 0)


def test_gaps_go_with_their_row_and_with_the_next_move_of_the_window() -> None:
    shape = SlabShape()
    shape.begins, shape.stop, shape.room = [0, 4, SlabShape.HOLE], 10, 64
    shape.close_draft([3, 1, 0])
    shape.close_draft([2, 5, 0])
    assert shape.stop == 18
    assert shape.gaps == {0: [range(15, 18)], 1: [range(11, 13)]}
    assert shape.lengths() == [15, 12, 0]
    assert shape.longest == 15
    assert shape.columns_of(1).tolist() == [*range(4, 11), *range(13, 18)]
    shape.clear_slot(0)
    shape.keep([1])
    assert (shape.begins, shape.gaps) == ([4], {0: [range(11, 13)]})

    life = Life(DecodeBatch([FULL_WIDTH]), {})
    for row in (1, 2):
        life.join(RowId(row), 30 * row)
    life.batch.open_step(4)
    life.batch.close_draft(life.batch.tokens, [4, 1])
    assert life.batch.shape.gaps
    life.batch.leave([RowId(1)])
    life.batch.close_holes(at_once=True)
    assert not life.batch.shape.gaps
    assert life.batch.shape.width == 61


def test_a_window_refuses_rows_with_gaps_because_it_counts_columns() -> None:
    life = Life(DecodeBatch([FULL_WIDTH]), {})
    life.join(RowId(1), 30)
    life.join(RowId(2), 20)
    life.batch.open_step(3)
    assert not life.batch.shape.windowed
    with pytest.raises(ValueError, match="window"):
        life.slab.make_mask(3, window_size=8)
    life.batch.close_draft(life.batch.tokens, [1, 3])
    life.batch.open_step()
    with pytest.raises(ValueError, match="window"):
        life.slab.make_mask(1, window_size=8)
    assert life.batch.shape.windowed
