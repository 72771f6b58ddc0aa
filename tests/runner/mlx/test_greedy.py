"""Whatever happens around a row, it says what mlx-lm's own loop says for its prompt."""

from __future__ import annotations

import os
import random

import pytest

from runner.engine import PrefillChunk
from runner.mlx.forward import prefill
from runner.mlx.model.device import LEAST_WIDTH, bounded_width
from tests.harness.variants import mostly_proof

MODELS = ["qwen3", "llama", "qwen3_moe", "gemma3_text", "qwen3_next"]
NEAR_TIE = 1e-4
ROWS, STEPS = (14, 300) if os.environ.get("SHOAL_PROVE") else (9, 180)


def same_but_for_near_ties(got: list[int], raw: list[tuple[int, float]]) -> bool:
    """Equal up to the first place where the two likeliest were too close to tell."""
    for token, (wanted, margin) in zip(got, raw, strict=False):
        if token != wanted:
            return margin < NEAR_TIE
    return True


@pytest.mark.parametrize("name", mostly_proof(MODELS, ["qwen3", "gemma3_text", "qwen3_next"]))
def test_rows_that_join_and_leave_say_what_they_would_say_alone(drive, new_row, raw_greedy, name):
    check_rows(drive(name), new_row, raw_greedy, name)


@pytest.mark.parametrize("name", mostly_proof(MODELS, ["qwen3"]))
def test_chunks_padded_to_few_widths_say_the_same(drive, new_row, raw_greedy, name, monkeypatch):
    widths = []

    def bounded(tokens):
        widths.append(bounded_width(tokens))
        return widths[-1]

    player = drive(name)
    prompts = player.engine._forward.prompts
    monkeypatch.setattr(prompts, "_pads", prompts._groups)
    monkeypatch.setattr(prefill, "bounded_width", bounded)
    check_rows(player, new_row, raw_greedy, name)
    assert bool(widths) == prompts._groups and set(widths) <= {32, 64}
    assert prompts._groups or name != "qwen3"


def test_a_bounded_width_is_a_power_of_two_and_less_than_twice_the_chunk():
    for tokens in range(1, 3000):
        width = bounded_width(tokens)
        assert width & (width - 1) == 0 and tokens <= width < max(2 * tokens, LEAST_WIDTH + 1)


def check_rows(player, new_row, raw_greedy, name):
    chance = random.Random(name)
    waiting = [
        new_row([chance.randrange(3, 259) for _ in range(chance.choice((1, 2, 7, 30, 45, 70)))])
        for _ in range(ROWS)
    ]
    specs = list(waiting)
    lengths = {spec.row: chance.choice((2, 5, 12, 40)) for spec in specs}
    filling: dict = {}
    running: list = []
    gone: list = []
    while waiting or filling or running or gone:
        admit = []
        while waiting and len(filling) + len(running) < 5:
            admit.append(waiting.pop())
            filling[admit[-1].row] = [admit[-1], 0]
        group = []
        done = []
        for row, entry in filling.items():
            spec, start = entry
            stop = min(start + chance.choice((1, 8, 16, 64)), len(spec.tokens))
            group.append(PrefillChunk(row, start, stop))
            entry[1] = stop
            if stop == len(spec.tokens):
                done.append(row)
        cut = chance.randrange(len(group) + 1)
        groups = tuple(part for part in (tuple(group[:cut]), tuple(group[cut:])) if part)
        player.step(release=tuple(gone), admit=tuple(admit), prefill=groups, decode=tuple(running))
        gone = [row for row in running if len(player.ids(row)) >= lengths[row]]
        running = [row for row in running if row not in gone] + done
        for row in done:
            del filling[row]
    player.finish()
    assert not player.failures
    for spec in specs:
        raw = raw_greedy(name, spec.tokens, lengths[spec.row])
        got = player.ids(spec.row)[: lengths[spec.row]]
        assert len(got) == lengths[spec.row]
        assert same_but_for_near_ties(got, raw), (spec.row, got, raw)
    assert player.engine.memory().kv_bytes == 0


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "qwen3_next"])
def test_a_row_that_pauses_goes_on_where_it_stopped(drive, new_row, raw_greedy, name):
    player = drive(name)
    rows = [new_row(range(10 + i, 40 + 9 * i)) for i in range(3)]
    chunks = tuple((PrefillChunk(row.row, 0, len(row.tokens)),) for row in rows)
    player.step(admit=tuple(rows), prefill=chunks)
    names = [row.row for row in rows]
    for count in range(24):
        player.step(decode=tuple(row for i, row in enumerate(names) if count % 3 != i))
    for _ in range(8):
        player.step(decode=())
        player.step(decode=tuple(names))
    player.finish(*names)
    for row in rows:
        raw = raw_greedy(name, row.tokens, 25)
        assert same_but_for_near_ties(player.ids(row.row), raw)
        assert len(player.ids(row.row)) == 25


def test_a_long_row_outgrows_its_slab_many_times(drive, new_row, raw_greedy):
    player = drive("qwen3")
    long, short = new_row(range(3, 90)), new_row([5])
    player.step(
        admit=(long, short),
        prefill=((PrefillChunk(long.row, 0, 87),), (PrefillChunk(short.row, 0, 1),)),
    )
    for _ in range(STEPS - 1):
        player.step(decode=(long.row, short.row))
    player.finish(long.row, short.row)
    assert same_but_for_near_ties(player.ids(long.row), raw_greedy("qwen3", long.tokens, STEPS))
    assert same_but_for_near_ties(player.ids(short.row), raw_greedy("qwen3", short.tokens, STEPS))
