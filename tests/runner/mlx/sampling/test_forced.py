"""Tokens that a plan forces on rows: said whatever was drawn, and nothing else changes."""

from __future__ import annotations

import math

import pytest
from llguidance import LLMatcher

from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from runner.engine import GrammarSpec, PrefillChunk
from tests.harness.families import MODELS

DRAWN = Sampling(temperature=0.9, top_p=0.9, frequency_penalty=0.5, logit_bias={7: -100.0})
SETTINGS = [Sampling(temperature=0.0), DRAWN]
FORCED = {0: 9, 4: 7, 5: 11}
"""The places of a row's output, and what it has to say there; one against its own bias."""


def first(rows):
    return {
        "admit": tuple(rows),
        "prefill": tuple((PrefillChunk(row.row, 0, len(row.tokens)),) for row in rows),
    }


def play(player, rows, count, forced):
    """Play rows together; those in `forced` say at its places what it has there."""
    names = tuple(row.row for row in rows)
    for place in range(count):
        told = tuple((name, TokenId(forced[place])) for name in names[:1] if place in forced)
        player.step(**(first(rows) if place == 0 else {"decode": names}), forced=told)
    player.finish(*names)
    assert not player.failures


def resumed(player, new_row, row, made, **parts):
    """What the row says next where it had made these tokens."""
    again = new_row([*row.tokens, *made], made=len(made), **parts)
    player.step(**first([again]))
    player.finish(again.row)
    (token,) = player.ids(again.row)
    return token


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "qwen3_next"])
@pytest.mark.parametrize("sampling", SETTINGS)
def test_a_row_goes_on_from_what_it_had_to_say_and_others_from_their_own(
    drive, new_row, name, sampling
):
    assert name in MODELS
    player = drive(name)
    other = new_row(range(40, 55), seed=5, sampling=sampling)
    wanted = player.alone(other, 10)
    row = new_row(range(20, 30), seed=3, sampling=sampling)
    beside = new_row(other.tokens, seed=5, sampling=sampling)
    play(player, [row, beside], 10, FORCED)
    made = player.ids(row.row)
    assert {place: made[place] for place in FORCED} == FORCED
    assert player.ids(beside.row) == wanted
    for place in (1, 6, 9):
        again = resumed(player, new_row, row, made[:place], seed=3, sampling=sampling)
        assert again == made[place]


def test_what_was_forced_has_the_models_own_log_probability(drive, new_row):
    player = drive("qwen3")
    row = new_row(range(20, 30), logprobs=3)
    play(player, [row], 8, FORCED)
    said = player.tokens[row.row]
    for place, token in enumerate(said):
        assert math.isfinite(token.logprob) and token.logprob <= 0
        best = token.top[0]
        assert token.logprob <= best[1] + 1e-5
        if place not in FORCED:
            assert token.token == best[0]
        assert len(token.top) == 3


def test_a_grammar_goes_on_behind_what_it_allows_and_was_forced(drive, new_row):
    player = drive("qwen3")
    word = GrammarSpec("letters", LLMatcher.grammar_from_regex("[a-z]{4}X[0-9]{3}"))
    free = player.alone(new_row(range(20, 30), grammar=word), 9)
    letter = next(token for token in free[:4] if token != free[1])
    row = new_row(range(20, 30), grammar=word)
    play(player, [row], 9, {1: letter})
    made = player.ids(row.row)
    assert made[1] == letter
    assert made[4] == free[4], "the one X that there is"
