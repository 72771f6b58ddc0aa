"""Choosing tokens, held against plain numpy."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from bus.wire.messages.requests import Sampling
from runner.engine import PrefillChunk
from runner.mlx.sampling.batch_sampler import BatchSampler, start_draw
from runner.mlx.sampling.rng import key_words
from runner.mlx.sampling.truncation import Cuts, Truncation


def draw_of(sampling: Sampling, *, seed=1, tokens=(1, 2, 3), made=0, top=None, vocabulary=50):
    return start_draw(sampling, seed=seed, tokens=tokens, made=made, top=top, vocabulary=vocabulary)


def kept_by_numpy(logits, *, top_k=0, top_p=1.0, min_p=0.0):
    order = np.argsort(-logits, kind="stable")
    kept = np.ones(len(logits), dtype=bool)
    if top_k:
        kept[order[top_k:]] = False
    mass = np.where(kept, np.exp(logits - logits.max()), 0.0)
    mass /= mass.sum()
    if top_p < 1.0:
        before = np.cumsum(mass[order]) - mass[order]
        kept[order[before >= top_p]] = False
    return kept & (logits - logits.max() >= (math.log(min_p) if min_p else -np.inf))


ROWS = [
    {"top_p": 0.9},
    {"top_k": 5},
    {"top_k": 20, "top_p": 0.8},
    {"min_p": 0.05},
    {"top_p": 0.3, "min_p": 0.2, "top_k": 7},
    {},
    {"top_k": 1},
    {"top_p": 1e-6},
]


@pytest.mark.parametrize("vocabulary", [60, 4000])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], [ROWS[2], ROWS[4]], [{"top_k": 1500}]])
def test_truncation_keeps_what_numpy_keeps(rows, vocabulary):
    chance = np.random.default_rng(3)
    logits = chance.normal(size=(len(rows), vocabulary)).astype(np.float32) * 3
    cuts = Cuts(
        tuple(row.get("top_k", 0) for row in rows),
        tuple(row.get("top_p", 1.0) for row in rows),
        tuple(row.get("min_p", 0.0) for row in rows),
    )
    least = np.array(Truncation(cuts, vocabulary).threshold(mx.array(logits)))
    for index, row in enumerate(rows):
        kept = logits[index] >= least[index]
        wanted = kept_by_numpy(logits[index].astype(np.float64), **row)
        assert kept.sum() == wanted.sum(), row
        assert (kept == wanted).all(), row


def test_penalties_and_bias_follow_the_formulas_over_many_steps():
    vocabulary = 40
    chance = np.random.default_rng(5)
    settings = [
        Sampling(temperature=0, frequency_penalty=0.7, presence_penalty=0.3),
        Sampling(temperature=0, repetition_penalty=1.8),
        Sampling(temperature=0, logit_bias={3: 4.5, 7: -100.0}),
        Sampling(temperature=0),
        Sampling(
            temperature=0, repetition_penalty=0.6, frequency_penalty=-0.5, logit_bias={1: 2.0}
        ),
    ]
    prompt, made = (4, 5, 6), (7, 7)
    draws = [draw_of(s, tokens=prompt + made, made=2, vocabulary=vocabulary) for s in settings]
    sampler = BatchSampler(draws, vocabulary)
    outputs = [list(made) for _ in settings]
    for _ in range(25):
        logits = chance.normal(size=(len(settings), vocabulary)).astype(np.float32)
        tokens = sampler.draw(mx.array(logits)).tokens.tolist()
        for row, sampling in enumerate(settings):
            scores = logits[row].astype(np.float64)
            for token in set(prompt) | set(outputs[row]):
                r = sampling.repetition_penalty
                scores[token] = scores[token] / r if scores[token] > 0 else scores[token] * r
            for token in set(outputs[row]):
                count = outputs[row].count(token)
                scores[token] -= count * sampling.frequency_penalty + sampling.presence_penalty
            for token, bias in sampling.logit_bias.items():
                scores[token] += bias
            assert tokens[row] == int(scores.argmax()), (row, outputs[row])
            outputs[row].append(tokens[row])
    sampler.close()
    counts = np.bincount(outputs[0], minlength=vocabulary)
    assert (np.array(draws[0].generated) == counts).all()


def test_the_draw_follows_the_distribution():
    vocabulary, rows = 12, 4000
    logits = np.linspace(-2, 2, vocabulary).astype(np.float32)
    draws = [draw_of(Sampling(temperature=0.8), seed=s, vocabulary=vocabulary) for s in range(rows)]
    tokens = BatchSampler(draws, vocabulary).draw(mx.array(np.tile(logits, (rows, 1)))).tokens
    wanted = np.exp(logits / 0.8) / np.exp(logits / 0.8).sum() * rows
    found = np.bincount(np.array(tokens), minlength=vocabulary)
    statistic = ((found - wanted) ** 2 / wanted).sum()
    assert statistic < 31.3  # chi-square, 11 degrees of freedom, one in a thousand


def test_successive_positions_of_one_seed_are_independent_draws():
    vocabulary, steps = 6, 3000
    draw = draw_of(Sampling(temperature=1.0), seed=9, vocabulary=vocabulary)
    sampler = BatchSampler([draw], vocabulary)
    tokens = [sampler.draw(mx.zeros((1, vocabulary))).tokens for _ in range(steps)]
    found = np.bincount(np.array(mx.concatenate(tokens)), minlength=vocabulary)
    statistic = ((found - steps / vocabulary) ** 2 / (steps / vocabulary)).sum()
    assert statistic < 20.5  # chi-square, 5 degrees of freedom, one in a thousand


def test_keys_differ_by_seed_and_by_position_and_take_any_64_bits():
    keys = {key_words(s, p) for s in (0, 1, -1, 2**63, 2**64 - 2) for p in range(200)}
    assert len(keys) == 5 * 200
    assert key_words(-1, 3) == key_words(2**64 - 1, 3)


def test_logprobs_are_the_models_own_whatever_the_settings():
    chance = np.random.default_rng(8)
    logits = chance.normal(size=(3, 30)).astype(np.float32)
    plain = Sampling(temperature=0)
    odd = Sampling(temperature=2.0, top_k=3, logit_bias={4: 9.0}, presence_penalty=1.0)
    draws = [
        draw_of(plain, top=2, vocabulary=30),
        draw_of(plain, vocabulary=30),
        draw_of(odd, top=5, vocabulary=30),
    ]
    drawn = BatchSampler(draws, 30).draw(mx.array(logits))
    own = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert drawn.listed == (0, 2)
    tokens = drawn.tokens.tolist()
    for at, row in enumerate(drawn.listed):
        assert drawn.chosen[at].item() == pytest.approx(own[row, tokens[row]], abs=1e-5)
        wanted = np.argsort(-own[row])[:5]
        assert drawn.top_ids[at].tolist() == wanted.tolist()
        assert np.allclose(np.array(drawn.top_logprobs[at]), own[row, wanted], atol=1e-5)


SETTINGS = [
    Sampling(temperature=0.9),
    Sampling(temperature=1.3, top_p=0.9),
    Sampling(temperature=0.7, top_k=20, top_p=0.8),
    Sampling(temperature=1.0, min_p=0.05, frequency_penalty=0.5),
    Sampling(temperature=1.1, repetition_penalty=1.2, presence_penalty=0.4),
    Sampling(temperature=0.0),
    Sampling(temperature=0.0, frequency_penalty=1.5),
    Sampling(temperature=0.8, logit_bias={9: 3.0, 11: -100.0}),
]


@pytest.mark.parametrize("name", ["qwen3", "qwen3_next"])
def test_a_row_says_the_same_alone_in_a_batch_and_after_a_preemption(drive, new_row, name):
    player = drive(name)
    count = 12
    prompts = [range(20 + i, 30 + 3 * i) for i in range(len(SETTINGS))]

    def rows():
        return [
            new_row(prompt, sampling=sampling, seed=100 + i)
            for i, (prompt, sampling) in enumerate(zip(prompts, SETTINGS, strict=True))
        ]

    alone = [player.alone(row, count) for row in rows()]
    batch = rows()
    player.step(
        admit=tuple(batch),
        prefill=(tuple(PrefillChunk(row.row, 0, len(row.tokens)) for row in batch),),
    )
    for _ in range(count - 1):
        player.step(decode=tuple(row.row for row in batch))
    player.finish(*(row.row for row in batch))
    assert [player.ids(row.row) for row in batch] == alone
    cut = 5
    for row, whole, prompt, sampling in zip(batch, alone, prompts, SETTINGS, strict=True):
        resumed = new_row([*prompt, *whole[:cut]], made=cut, sampling=sampling, seed=row.seed)
        assert player.alone(resumed, count - cut) == whole[cut:]


def test_rows_come_and_go_without_disturbing_each_others_penalties(drive, new_row):
    player = drive("qwen3")
    rows = [
        new_row(
            range(5 + i, 20 + i),
            seed=i,
            sampling=Sampling(temperature=0.9, frequency_penalty=0.8, repetition_penalty=1.1),
        )
        for i in range(4)
    ]
    alone = [
        player.alone(new_row(row.tokens, seed=row.seed, sampling=row.sampling), 24) for row in rows
    ]
    running = []
    for row in rows:
        player.step(
            admit=(row,),
            prefill=((PrefillChunk(row.row, 0, len(row.tokens)),),),
            decode=tuple(running),
        )
        running.append(row.row)
        player.step(decode=tuple(running))
    player.step(release=(running[1],), decode=(running[0], running[2], running[3]))
    left = [running[0], running[2], running[3]]
    for _ in range(25):
        player.step(decode=tuple(left))
    player.finish(*left)
    for row, wanted in zip(rows, alone, strict=True):
        got = player.ids(row.row)
        assert got[:24] == wanted[: len(got)]
        assert len(got) >= (24 if row.row in left else 3)


def test_a_row_gets_as_many_likeliest_as_it_asked_for(drive, new_row):
    player = drive("qwen3")
    rows = [new_row([5, 6, 7], logprobs=k) for k in (0, 3, None, 20)]
    player.step(admit=tuple(rows), prefill=tuple((PrefillChunk(row.row, 0, 3),) for row in rows))
    for _ in range(3):
        player.step(decode=tuple(row.row for row in rows))
    player.finish(*(row.row for row in rows))
    for row, wanted in zip(rows, (0, 3, 0, 20), strict=True):
        for token in player.tokens[row.row]:
            assert len(token.top) == wanted
            assert math.isnan(token.logprob) == (row.logprobs is None)
            if wanted:
                assert token.top[0] == (token.token, pytest.approx(token.logprob))
                assert list(token.top) == sorted(token.top, key=lambda one: -one[1])


def test_ends_are_held_back_until_a_row_has_made_enough_whoever_shares_the_batch():
    logits = np.zeros((3, 50), dtype=np.float32)
    logits[:, 7], logits[:, 9], logits[:, 8] = 5.0, 4.0, 3.0
    draws = [
        draw_of(Sampling(temperature=0.0)),
        draw_of(Sampling(temperature=0.0)),
        draw_of(Sampling(temperature=0.5, top_k=1, logit_bias={7: 100.0})),
    ]
    for draw in draws[1:]:
        draw.held_ends, draw.held_until = frozenset({7, 9}), draw.position + 2
    together = BatchSampler(draws, 50)
    said = [together.draw(mx.array(logits)).tokens.tolist() for _ in range(3)]
    assert said == [[7, 8, 8], [7, 8, 8], [7, 7, 7]]
    for slot in range(3):
        alone = draw_of(draws[slot].sampling)
        alone.held_ends, alone.held_until = draws[slot].held_ends, draws[slot].held_until
        sampler = BatchSampler([alone], 50)
        row = mx.array(logits[slot : slot + 1])
        assert [sampler.draw(row).tokens.item() for _ in range(3)] == [one[slot] for one in said]
