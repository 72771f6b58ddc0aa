"""Slices draw as a masked sampler does, whatever the model wants, and slots keep keys apart."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest, Sampling, TextPrompt
from runner.engine import GrammarSpec
from runner.llama.slices import MOST_SEED, SEEDED_SLICE, Slices
from runner.llama.slots import SlotContent, Slots
from runner.llama.slots.slots import common
from runner.text import PreparedChoice, PreparedRequest

VOCABULARY = 8
PERMITTED = {0: (1, 2, 5), 1: (0, 7), 2: (3,)}
"""The tokens that may come, by the number of tokens so far, again and again."""


class Steps:
    """A grammar whose permitted tokens depend on the number of tokens alone."""

    def __init__(self) -> None:
        self.count = 0

    def accepts(self, token: TokenId) -> bool:
        return token in PERMITTED[self.count % 3]

    def consume(self, token: TokenId) -> None:
        assert self.accepts(token)
        self.count += 1

    def allowed(self) -> NDArray[np.bool_]:
        mask = np.zeros(VOCABULARY, dtype=np.bool_)
        mask[[*PERMITTED[self.count % 3]]] = True
        return mask


def prepared(**fields: object) -> PreparedRequest:
    request = GenerationRequest(
        request_id=RequestId("r"), model=ModelId("m"), prompt=TextPrompt(text="x"), **fields
    )  # pyright: ignore[reportArgumentType]
    return PreparedRequest(
        request, tuple(map(TokenId, (4, 6))), 12, frozenset({7}), (PreparedChoice(0, None),),
        grammar=GrammarSpec("k", "g"),
    )  # fmt: skip


def draw(fields: dict, logits: list[float], dice: random.Random) -> TokenId:
    """Draw a token as llama-server does: the bias first."""
    weights = np.array(logits)
    for token, bias in fields["logit_bias"]:
        weights[token] = -np.inf if bias is False else weights[token] + bias
    chances = np.exp(weights - weights.max())
    return TokenId(dice.choices(range(VOCABULARY), chances)[0])


def row(slices: Slices, logits: list[float], dice: random.Random, count: int) -> list[TokenId]:
    while len(slices.made) < count:
        forced = slices.forced()
        fields = slices.asking() if forced is None else {"n_predict": 1}
        for _ in range(fields["n_predict"]):
            token = draw(fields, logits, dice) if forced is None else forced
            if len(slices.made) == count or not slices.may_come(token) or slices.add(token):
                break
    return slices.made


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.1)])
def test_each_token_has_its_chance_under_the_grammar(sampling: Sampling) -> None:
    logits = [2.0, 1.0, 0.0, -3.0, 3.0, -1.0, 2.0, 0.5]
    dice, runs, drawn = random.Random(3), 4000, Counter[tuple[int, int]]()
    for _ in range(runs):
        slices = Slices(prepared(sampling=sampling), 1, VOCABULARY, Steps())
        drawn.update(enumerate(row(slices, logits, dice, 3)))
    for place, permitted in PERMITTED.items():
        chances = np.exp([logits[token] for token in permitted])
        for token, chance in zip(permitted, chances / chances.sum(), strict=True):
            assert drawn[place, token] / runs == pytest.approx(chance, abs=0.03), (place, token)


@settings(max_examples=60)
@given(st.lists(st.floats(-20, 20), min_size=8, max_size=8), st.integers(0, 99))
def test_whatever_the_model_wants_the_grammar_holds(logits: list[float], seed: int) -> None:
    made = row(Slices(prepared(), 1, VOCABULARY, Steps()), logits, random.Random(seed), 9)
    assert all(token in PERMITTED[place % 3] for place, token in enumerate(made))


def test_the_fields_of_a_slice_say_what_the_request_wants() -> None:
    sampling = Sampling(frequency_penalty=0.5, presence_penalty=0.25, logit_bias={2: 3.0})
    slices = Slices(prepared(sampling=sampling, min_tokens=2, top_logprobs=0), 5, VOCABULARY)
    first = slices.asking()
    assert (first["frequency_penalty"], first["presence_penalty"]) == (0.5, 0.25)
    assert (first["n_predict"], first["repeat_last_n"], first["n_probs"]) == (1, 0, 1)
    assert first["logit_bias"] == [[2, 3.0], [7, False]] and first["prompt"] == [4, 6]
    slices.add(TokenId(1))
    slices.add(TokenId(0))
    third = slices.asking()
    assert (third["repeat_last_n"], third["prompt"]) == (2, [4, 6, 1, 0])
    assert third["logit_bias"] == [[2, 3.0]] and third["seed"] != first["seed"] < MOST_SEED


def test_slices_of_a_seed_do_not_depend_on_the_speed_of_the_machine() -> None:
    for seconds in (0.001, 5.0):
        sizes = {None: 0, 4: 0}
        for seed in sizes:
            slices = Slices(prepared(sampling=Sampling(seed=seed)), 4, VOCABULARY)
            for _ in range(3):
                sizes[seed] = slices.asking()["n_predict"]
                slices.took(seconds, 1)
        assert sizes[4] == SEEDED_SLICE and (sizes[None] == 1) is (seconds > 1)


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_the_common_beginning_is_found(one: list[TokenId], other: list[TokenId]) -> None:
    count = common(one, other)
    assert one[:count] == other[:count]
    assert one[: count + 1] != other[: count + 1] or count == min(len(one), len(other))


@given(st.data())
def test_a_slot_is_taken_once_and_keeps_for_its_own_key_alone(data: st.DataObject) -> None:
    slots, taken, last = Slots(3), [], dict[int, bytes]()
    for _ in range(20):
        if taken and (len(taken) == 3 or data.draw(st.booleans())):
            slots.free(taken.pop(data.draw(st.integers(0, len(taken) - 1))))
            continue
        key = data.draw(st.sampled_from([b"", b"red", b"blue"]))
        prompt = SlotContent([data.draw(st.integers(0, 2)) for _ in range(3)], key)
        best, _ = slots.best(prompt)
        slot = slots.take(prompt)
        assert slot.number == best
        assert slot.number not in {other.number for other in taken}
        assert slot.keeps == (last.get(slot.number) == key)
        last[slot.number] = key
        taken.append(slot)


def test_a_row_gets_the_slot_with_the_longest_common_beginning() -> None:
    slots = Slots(3)
    prompts = [SlotContent(prompt, b"k") for prompt in ([1, 2, 3], [1, 5, 6], [9, 9, 9])]
    first = [slots.take(prompt) for prompt in prompts]
    for slot in first:
        slots.free(slot)
    wanted = SlotContent([1, 5, 7], b"k")
    assert slots.best(wanted) == (first[1].number, 2)
    again = slots.take(wanted)
    assert again.number == first[1].number and again.keeps
    assert [number for number, _ in slots.unsaved()] == [first[0].number, first[2].number]
    assert slots.unsaved() == []
    slots.hold(first[2].number, wanted)
    slots.free(again)
    assert [number for number, _ in slots.unsaved()] == [again.number]
