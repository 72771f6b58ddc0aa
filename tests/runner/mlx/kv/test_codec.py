"""KV in fewer bits: a row holds the same whatever is beside it, in the bytes that were billed."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from bus.wire.kv import held_bytes
from runner.engine import RowId
from runner.mlx.kv import copy_of
from runner.mlx.kv.batch import DecodeBatch
from runner.mlx.kv.codec import FULL_WIDTH, FewerBits, codec_for
from runner.mlx.kv.padded_batch import GroupKV, GroupShape
from runner.mlx.kv.row_kv import RowKV

HEADS = 2
FEWER = [FewerBits(8, 32), FewerBits(4, 32), FewerBits(8, 64), FewerBits(4, 64)]


def noise(*shape: int) -> mx.array:
    return mx.random.normal(shape)


def same(one, other) -> bool:
    return all(bool(mx.array_equal(a, b)) for a, b in zip(one, other, strict=True))


def test_no_group_means_full_width():
    assert codec_for("8bit", 64, 128) == FewerBits(8, 64)
    assert codec_for("4bit", 64, 96) == FewerBits(4, 32)
    assert codec_for("8bit", 80, 80) is FULL_WIDTH
    assert codec_for("full", 64, 64) is FULL_WIDTH


@pytest.mark.parametrize("codec", FEWER)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_what_is_held_takes_the_bytes_of_the_bill(codec, dtype):
    keys, values = (noise(3, HEADS, 17, 2 * codec.group).astype(dtype) for _ in range(2))
    parts = codec.encode(keys, values)
    mx.eval(parts)
    kind = "8bit" if codec.bits == 8 else "4bit"
    full = keys.nbytes + values.nbytes
    assert sum(part.nbytes for part in parts) == held_bytes(full, kind, dtype.size, codec.group)
    got = codec.fetch(parts)
    steps = 2**codec.bits - 1
    for one, other in zip((keys, values), got, strict=True):
        groups = one.astype(mx.float32).reshape(-1, codec.group)
        step = mx.max(mx.max(groups, -1) - mx.min(groups, -1)) / steps
        assert other.dtype == dtype
        off = mx.max(mx.abs(one.astype(mx.float32) - other.astype(mx.float32)))
        assert off.item() <= 1.05 * step.item() + 2e-3, "less than a step"


@pytest.mark.parametrize("codec", FEWER)
def test_a_row_in_a_batch_holds_what_it_holds_alone(codec):
    """Through random joins, leaves, holes and moves of the slab: to the bit."""
    chance, count = random.Random(codec.bits), 0
    mx.random.seed(codec.group)
    batch = DecodeBatch([codec], packed=True)
    slab, alone = batch.layers[0], {}
    assert (slab.bits, slab.group_size) == (codec.bits, codec.group)
    for _ in range(60):
        for row in list(alone):
            if chance.random() < 0.06:
                batch.leave([row])
                del alone[row]
        while len(alone) < 5 and chance.random() < 0.4:
            count += 1
            past = noise(1, HEADS, chance.choice((1, 5, 70)), codec.group)
            pair = [RowKV(chance.choice((0, 90)), codec) for _ in range(2)]
            for own in pair:
                own.update_and_fetch(past, 2 * past)
            batch.join(RowId(count), pair[:1], pair[0].offset, mx.array([count]))
            alone[RowId(count)] = pair[1]
        if not alone:
            continue
        batch.close_holes()
        new = noise(len(batch), HEADS, 1, codec.group)
        batch.open_step()
        keys, values = slab.update_and_fetch(new, 2 * new)
        assert len(keys) == len(values) == 3, "as they are held"
        for row, own in alone.items():
            one = new[batch.slot_of(row)][None]
            own.update_and_fetch(one, 2 * one)
        batch.close_step(batch.tokens)
        row = chance.choice(list(alone))
        (taken,), _ = batch.take(row)
        assert same(taken.past(), alone[row].past())
        assert taken.codec == codec
    assert count > 8


@pytest.mark.parametrize("codec", FEWER[:2])
def test_a_prompt_holds_the_same_in_chunks_in_groups_and_at_once(codec):
    mx.random.seed(3)
    lengths = (9, 40)
    prompts = [noise(1, HEADS, length, codec.group) for length in lengths]
    whole = []
    for prompt in prompts:
        own = RowKV(0, codec)
        seen = own.update_and_fetch(prompt, 3 * prompt)
        assert same(seen, codec.fetch(own.past())), "attention sees what is held"
        whole.append(own)
    parted = [RowKV(60, codec) for _ in prompts]
    parted[1].update_and_fetch(prompts[1][:, :, :31], 3 * prompts[1][:, :, :31])
    group = GroupKV(GroupShape((0, 31), (9, 9)), parted)
    chunk = mx.concatenate([prompts[0], prompts[1][:, :, 31:]])
    keys, values = group.update_and_fetch(chunk, 3 * chunk)
    assert keys.shape == values.shape == (2, HEADS, 31 + 9, codec.group)
    for own, other in zip(whole, parted, strict=True):
        assert same(own.past(), other.past())
    (kept,) = copy_of([whole[1]], 12)
    assert kept.codec == codec and kept.offset == 12
    assert same(kept.past(), whole[1].past(12))
    assert kept.nbytes == sum(part.nbytes for part in whole[1].past()) * 12 // 40
