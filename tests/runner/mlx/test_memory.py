"""What rows and prefixes take is given back."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from runner.engine import PrefillChunk, StepPlan

SLOP = 64 << 10


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "qwen3_next"])
def test_rows_that_left_leave_nothing_behind(drive, new_row, name):
    player = drive(name)
    chance = random.Random(2)
    player.finish()
    mx.clear_cache()
    before = mx.get_active_memory()
    for _ in range(3):
        rows = [
            new_row([chance.randrange(3, 259) for _ in range(chance.randrange(1, 200))])
            for _ in range(6)
        ]
        names = tuple(row.row for row in rows)
        player.step(
            admit=tuple(rows),
            prefill=tuple((PrefillChunk(row.row, 0, len(row.tokens)),) for row in rows),
        )
        player.step(decode=names)
        facts = player.engine.facts
        tokens = len(rows) * max(len(row.tokens) for row in rows)
        assert player.engine.memory().kv_bytes >= tokens * facts.kv_bytes_per_token
        for _ in range(3):
            player.step(decode=names[:3])
        player.finish(*names)
        assert player.engine.memory().kv_bytes == 0
        assert mx.get_active_memory() - before <= SLOP


def test_kv_stays_within_rows_times_the_longest_and_a_stated_slack(drive, new_row):
    player = drive("qwen3")
    facts = player.engine.facts
    rows = [new_row([4 + i] * (40 + 60 * i)) for i in range(5)]
    running = []
    for row in rows:
        player.step(
            admit=(row,),
            prefill=((PrefillChunk(row.row, 0, len(row.tokens)),),),
            decode=tuple(running),
        )
        running.append(row.row)
    for step in range(200):
        player.step(decode=tuple(running))
        longest = max(len(row.tokens) for row in rows) + step + 2
        slack = max(64, longest // 8)
        bound = (len(rows) + 1) * (longest + slack) * facts.kv_bytes_per_token
        assert player.engine.memory().kv_bytes <= bound
    player.finish(*running)


def test_memory_is_counted_by_what_holds_it(drive, new_row):
    player = drive("qwen3")
    player.finish()
    facts, idle = player.engine.facts, player.engine.memory()
    assert (idle.kv_bytes, idle.prefix_bytes) == (0, 0)
    assert idle.active_bytes >= facts.weights_bytes
    row = new_row([5] * 100)
    player.step(admit=(row,), prefill=((PrefillChunk(row.row, 0, 60),),))
    busy = player.engine.memory()
    assert busy.kv_bytes == 100 * facts.kv_bytes_per_token
    player.finish(row.row)
    assert player.engine.memory().peak_bytes >= busy.active_bytes


def test_a_closed_engine_gives_back_its_kv(load, model_folder, new_row):
    engine = load(model_folder("qwen3"))
    row = new_row([5] * 300)
    engine.issue(StepPlan(0, admit=(row,), prefill=((PrefillChunk(row.row, 0, 300),),)))
    engine.close()
    memory = engine.memory()
    assert (memory.kv_bytes, memory.prefix_bytes) == (0, 0)
