"""Kept prefixes: same text, less work, bounded memory."""

from __future__ import annotations

import mlx.core as mx
import pytest

from runner.engine import EntryId, PrefillChunk, PrefixHit, PrefixInsert


def start(player, row, *, upto=None, entry=None, length=0, **parts):
    """Admit a row and compute the rest of its prompt, from a hit where one is given."""
    hits = (PrefixHit(row.row, entry, length),) if entry is not None else ()
    stop = upto or len(row.tokens)
    player.step(admit=(row,), hits=hits, prefill=((PrefillChunk(row.row, length, stop),),), **parts)


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_a_hit_of_any_length_changes_nothing(drive, new_row, name):
    player = drive(name)
    prompt = list(range(3, 93))
    wanted = player.alone(new_row(prompt), 12)
    entry = EntryId(1)
    giver = new_row(prompt)
    start(player, giver, insert=(PrefixInsert(entry, giver.row, 80),))
    for length in (1, 32, 64, 80):
        taker = new_row(prompt)
        start(player, taker, entry=entry, length=length)
        for _ in range(11):
            player.step(decode=(taker.row, giver.row))
        player.step(release=(taker.row,))
        assert player.ids(taker.row) == wanted
    player.finish(giver.row)
    assert player.ids(giver.row)[:12] == wanted
    assert player.engine.memory().prefix_bytes == 80 * player.engine.facts.kv_bytes_per_token
    player.step(evict=(entry,))
    player.finish()
    assert player.engine.memory().prefix_bytes == 0


def test_a_decoding_row_can_give_its_prompt_and_output(drive, new_row):
    player = drive("qwen3")
    giver = new_row(range(40, 75))
    start(player, giver)
    for _ in range(20):
        player.step(decode=(giver.row,))
    player.step(decode=(giver.row,), insert=(PrefixInsert(EntryId(2), giver.row, 50),))
    player.finish(giver.row)
    said = player.ids(giver.row)
    resumed = new_row([*giver.tokens, *said[:16]], made=16)
    start(player, resumed, entry=EntryId(2), length=50)
    for _ in range(4):
        player.step(decode=(resumed.row,))
    player.step(evict=(EntryId(2),))
    player.finish(resumed.row)
    assert player.ids(resumed.row) == said[16:21]


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next"])
def test_caches_that_cannot_be_cut_are_kept_and_used_whole(drive, new_row, name):
    player = drive(name)
    prompt = list(range(3, 63))
    wanted = player.alone(new_row(prompt), 10)
    giver = new_row(prompt)
    start(player, giver, upto=48, insert=(PrefixInsert(EntryId(3), giver.row, 48),))
    player.step(prefill=((PrefillChunk(giver.row, 48, 60),),))
    for length in (48, 30):  # 30 cannot be had from it: the row computes everything
        taker = new_row(prompt)
        start(player, taker, entry=EntryId(3), length=length)
        for _ in range(9):
            player.step(decode=(taker.row,))
        player.step(release=(taker.row,))
        assert player.ids(taker.row) == wanted
    player.step(evict=(EntryId(3),))
    player.finish(giver.row)
    assert player.ids(giver.row)[:1] == wanted[:1]
    assert not player.failures


def test_a_hit_on_an_entry_that_is_gone_is_computed(drive, new_row):
    player = drive("qwen3")
    wanted = player.alone(new_row(range(3, 43)), 6)
    row = new_row(range(3, 43))
    start(player, row, entry=EntryId(99), length=32)
    for _ in range(5):
        player.step(decode=(row.row,))
    player.finish(row.row)
    assert player.ids(row.row) == wanted


def test_an_entry_costs_what_it_holds_and_evicting_it_frees_that(drive, new_row):
    player = drive("qwen3")
    player.finish()
    mx.clear_cache()
    before = mx.get_active_memory()
    giver = new_row([9] * 900)
    start(player, giver, upto=512, insert=(PrefixInsert(EntryId(4), giver.row, 64),))
    player.finish(giver.row)
    held = 64 * player.engine.facts.kv_bytes_per_token
    assert held <= mx.get_active_memory() - before <= held + (16 << 10)
    player.step(evict=(EntryId(4),))
    player.finish()
    assert mx.get_active_memory() - before <= 16 << 10


@pytest.mark.parametrize(("name", "length"), [("qwen3", 33), ("qwen3_next", 20), ("qwen3", 0)])
def test_what_is_not_computed_is_not_kept(drive, new_row, name, length):
    player = drive(name)
    giver = new_row(range(3, 43))
    start(player, giver, upto=32, insert=(PrefixInsert(EntryId(5), giver.row, length),))
    player.finish(giver.row)
    assert player.engine.memory().prefix_bytes == 0
