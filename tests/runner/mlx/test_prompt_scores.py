"""A prompt's log-probabilities are those of one plain forward of mlx-lm over all of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from bus.wire.messages.requests import Sampling
from runner.engine import EntryId, PrefillChunk, PrefixHit, PrefixInsert, RowSpec

FAMILIES = ["qwen3", "llama", "qwen3_moe", "gemma3_text", "qwen3_next", "gpt_oss"]
CLOSE = 1e-4


@pytest.fixture(scope="module")
def plain(model_folder: Callable[[str], Path]) -> Callable[[str, Sequence[int]], list[list[float]]]:
    """The log-probabilities of all tokens after each of a prompt's, of one plain forward."""
    models: dict[str, Any] = {}

    def forward(name: str, tokens: Sequence[int]) -> list[list[float]]:
        if name not in models:
            models[name], _ = load_model(model_folder(name))
            models[name].set_dtype(mx.float32)
        logits = models[name](mx.array([list(tokens)]))[0].astype(mx.float32)
        return (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()

    return forward


def scored(player: Any, spec: RowSpec) -> tuple[list[float], list[tuple[Any, ...]]]:
    """What was told of the row's prompt; pieces have no gaps."""
    logprobs: list[float] = []
    top: list[tuple[Any, ...]] = []
    for result in player.results:
        for scores in result.scored:
            if scores.row == spec.row:
                assert scores.start == len(logprobs)
                logprobs += scores.logprobs
                top += scores.top
    return logprobs, top


def check(player: Any, spec: RowSpec, wanted: list[list[float]]) -> None:
    """Compare all that was told of a row with a plain forward's log-probabilities."""
    logprobs, top = scored(player, spec)
    assert len(logprobs) == len(spec.tokens)
    assert (logprobs[0], top[0]) == (0.0, ())
    for at, (token, logprob) in enumerate(zip(spec.tokens[1:], logprobs[1:], strict=True)):
        assert logprob == pytest.approx(wanted[at][token], abs=CLOSE)
        likeliest = sorted(wanted[at], reverse=True)[: spec.prompt_logprobs]
        assert [number for _, number in top[at + 1]] == pytest.approx(likeliest, abs=CLOSE)
        for other, number in top[at + 1]:
            assert number == pytest.approx(wanted[at][other], abs=CLOSE)
            assert other != token or number == logprob, "a token has one number"


def prompts(name: str, count: int) -> list[list[int]]:
    """Prompts of unlike lengths; the first has one token."""
    chance = random.Random(name)
    lengths = [1, 2, *(chance.randrange(5, 90) for _ in range(count - 2))]
    return [[chance.randrange(3, 259) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("name", FAMILIES)
def test_chunks_of_any_length_alone_and_together_tell_the_same(drive, new_row, plain, name):
    chance = random.Random(name)
    player = drive(name)
    specs = [
        new_row(tokens, prompt_logprobs=most)
        for tokens, most in zip(prompts(name, 6), (1, 5, 0, 20, 1, 3), strict=True)
    ]
    silent = new_row(specs[-1].tokens)
    rows = [*specs, silent]
    done = dict.fromkeys((spec.row for spec in rows), 0)
    player.step(admit=tuple(rows))
    while any(done[spec.row] < len(spec.tokens) for spec in rows):
        group = []
        for spec in rows:
            start = done[spec.row]
            if start < len(spec.tokens) and chance.random() < 0.7:
                done[spec.row] = min(start + chance.choice((1, 3, 16, 64)), len(spec.tokens))
                group.append(PrefillChunk(spec.row, start, done[spec.row]))
        player.step(prefill=(tuple(group),) if group else ())
    player.finish(*(spec.row for spec in rows))
    assert not player.failures
    for spec in specs:
        check(player, spec, plain(name, spec.tokens))
    assert scored(player, silent) == ([], [])
    assert player.ids(silent.row) == player.ids(specs[-1].row), "scoring changes no token"


def test_a_kept_prefix_changes_nothing_and_sampling_settings_do_not_touch_the_scores(
    drive, new_row, plain
):
    player = drive("qwen3")
    tokens = [3 + (at * 37) % 250 for at in range(100)]
    first = new_row(tokens)
    chunk = ((PrefillChunk(first.row, 0, 100),),)
    player.step(admit=(first,), prefill=chunk, insert=(PrefixInsert(EntryId(7001), first.row, 64),))
    sampling = Sampling(
        temperature=1.5, top_k=2, repetition_penalty=3.0, frequency_penalty=1.0, logit_bias={9: 50}
    )
    warm = new_row(tokens, prompt_logprobs=4, sampling=sampling)
    hit = PrefixHit(warm.row, EntryId(7001), 64)
    late = new_row(tokens, prompt_logprobs=4, sampling=sampling)
    player.step(
        admit=(warm, late),
        hits=(hit,),
        prefill=(
            (PrefillChunk(warm.row, 64, 100),),
            (PrefillChunk(late.row, 0, 100),),
        ),
    )
    player.step(evict=(EntryId(7001),))
    player.finish(first.row, warm.row, late.row)
    wanted = plain("qwen3", tokens)
    check(player, late, wanted)
    # An engine that is told to begin behind a prefix tells of what it computes, and no more.
    [scores] = [one for result in player.results for one in result.scored if one.row == warm.row]
    assert scores.start == 65
    own = [wanted[at][tokens[at + 1]] for at in range(64, 99)]
    assert scores.logprobs == pytest.approx(own, abs=CLOSE)


def test_a_row_that_lives_on_tells_of_its_prompt_alone(drive, new_row, plain):
    player = drive("llama")
    tokens = list(range(10, 50))
    spec = new_row([*tokens, 60, 61], made=2, prompt_logprobs=1)
    player.step(admit=(spec,), prefill=((PrefillChunk(spec.row, 0, 42),),))
    player.finish(spec.row)
    logprobs, _ = scored(player, spec)
    wanted = plain("llama", tokens)
    assert logprobs[1:] == pytest.approx(
        [wanted[at][tokens[at + 1]] for at in range(39)], abs=CLOSE
    )
