"""Log-likelihoods as evaluations ask for them: a context and a continuation, echoed with logprobs.

Asked of a running node by the official client, as lm-eval's `local-completions` does, and held to
one plain forward of mlx-lm over the same tokens of the bundled model.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import openai
import pytest
from mlx_lm import load
from openai import OpenAI

from tests.harness.nodes import ROOT

CLOSE = 1e-4
ITEMS = 50
AT_ONCE = 3
SAID = "the a boat fish sea red list of integers from one to ten and then she said hello ."
WORDS = SAID.split()

Plain = Callable[[list[int]], list[list[float]]]
Parts = tuple[list[int], list[int]]


@pytest.fixture(scope="module")
def bundled(node_url: str) -> Any:
    """The bundled model and its tokenizer, as mlx-lm loads them."""
    if os.environ.get("SHOAL_TEST_URL"):
        pytest.skip("what SHOAL_TEST_URL serves is not known to be the bundled model")
    model, tokenizer, *_ = load(str(ROOT / "conf" / "tiny"))
    model.set_dtype(mx.float32)
    return model, tokenizer


@pytest.fixture(scope="module")
def plain(bundled: Any) -> Plain:
    """The log-probabilities of every token after each of some tokens."""
    model, _ = bundled

    def forward(tokens: list[int]) -> list[list[float]]:
        logits = model(mx.array([tokens]))[0].astype(mx.float32)
        return (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()

    return forward


@pytest.fixture(scope="module")
def items(bundled: Any) -> list[Parts]:
    """Contexts and continuations as token ids; every other context begins like others."""
    _, tokenizer = bundled
    chance = random.Random(5)
    story = " ".join(chance.choice(WORDS) for _ in range(30))
    made: list[Parts] = []
    for index in range(ITEMS):
        own = " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, 20)))
        context = tokenizer.encode(story + " " + own if index % 2 else own)
        text = " " + " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, 8)))
        made.append((context, tokenizer.encode(text, add_special_tokens=False)))
    return made


def read_answer(answer: Any, contexts: list[int]) -> list[tuple[float, bool]]:
    """Read (log-likelihood, whether greedy says the same) of each choice, as lm-eval does."""
    found: list[tuple[float, bool]] = []
    choices = sorted(answer.choices, key=lambda choice: choice.index)
    for choice, length in zip(choices, contexts, strict=True):
        numbers = choice.logprobs.token_logprobs[length:-1]
        top = choice.logprobs.top_logprobs[length:-1]
        greedy = all(
            number == max(likeliest.values())
            for number, likeliest in zip(numbers, top, strict=True)
        )
        found.append((sum(numbers), greedy))
    return found


@pytest.mark.proof
def test_likelihoods_of_many_items_are_a_plain_forwards(
    client: OpenAI, model: str, items: list[Parts], plain: Plain
) -> None:
    batches = [items[at : at + 5] for at in range(0, ITEMS, 5)]

    def asked(batch: list[Parts]) -> list[tuple[float, bool]]:
        answer = client.completions.create(
            model=model,
            prompt=[context + continuation for context, continuation in batch],
            echo=True,
            logprobs=1,
            max_tokens=1,
            temperature=0,
            seed=1234,
        )
        return read_answer(answer, [len(context) for context, _ in batch])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = [*itertools.chain.from_iterable(pool.map(asked, batches))]
    greedy = 0
    for (context, continuation), (likelihood, is_greedy) in zip(items, found, strict=True):
        rows = plain(context + continuation)[len(context) - 1 : -1]
        own = [row[token] for row, token in zip(rows, continuation, strict=True)]
        assert likelihood == pytest.approx(sum(own), abs=CLOSE * len(own))
        assert is_greedy == all(number == max(row) for number, row in zip(own, rows, strict=True))
        greedy += is_greedy
    assert len(found) == ITEMS
    assert greedy < ITEMS


def test_a_continuation_that_the_model_would_choose_is_greedy(
    client: OpenAI, model: str, items: list[Parts], plain: Plain
) -> None:
    context = items[0][0]
    best = [max(range(len(row)), key=row.__getitem__) for row in plain(context)[-1:]]
    answer = client.completions.create(
        model=model, prompt=context + best, echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    [(_, is_greedy)] = read_answer(answer, [len(context)])
    assert is_greedy


@pytest.mark.parametrize(
    ("stream", "as_text"),
    [
        (False, False),
        pytest.param(False, True, marks=pytest.mark.proof),
        pytest.param(True, False, marks=pytest.mark.proof),
        (True, True),
    ],
)
def test_a_prompt_alone_has_every_token_and_makes_none(
    client: OpenAI, model: str, bundled: Any, plain: Plain, stream: bool, as_text: bool
) -> None:
    _, tokenizer = bundled
    text = "She said hello to 3 fish — and the 🐟 said “no”."
    tokens: list[int] = tokenizer.encode(text)
    fields: dict[str, Any] = {"echo": True, "logprobs": 3, "max_tokens": 0}
    prompt: Any = text if as_text else tokens
    made = client.completions.create(model=model, prompt=prompt, stream=stream, **fields)
    shown: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
    shown["text_offset"] = []
    said = ""
    chunks: Any = made if stream else [made]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        said += choice.text
        for name, values in shown.items():
            values += getattr(choice.logprobs, name) if choice.logprobs else []
    assert said == text
    assert len(shown["tokens"]) == len(tokens)
    assert (shown["token_logprobs"][0], shown["top_logprobs"][0]) == (None, None)
    rows = plain(tokens)
    own = [row[token] for row, token in zip(rows, tokens[1:], strict=False)]
    assert shown["token_logprobs"][1:] == pytest.approx(own, abs=CLOSE)
    for number, top, row in zip(
        shown["token_logprobs"][1:], shown["top_logprobs"][1:], rows, strict=False
    ):
        assert max(top.values()) == pytest.approx(max(row), abs=CLOSE)
        assert number in top.values(), "the token itself is among them"
    assert shown["text_offset"][0] == 0
    if not stream:
        assert made.usage.completion_tokens == 0
        assert made.usage.prompt_tokens == len(tokens)
        assert made.choices[0].finish_reason == "length"


def test_a_prompt_that_does_not_fit_and_what_is_not_offered_are_refused(
    client: OpenAI, model: str
) -> None:
    fields: dict[str, Any] = {"model": model, "echo": True, "logprobs": 1, "max_tokens": 0}
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(prompt=[65] * 100_000, **fields)
    assert caught.value.code == "context_length_exceeded"
    for changes, param in (
        ({"n": 2}, "n"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": False}, "max_tokens"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(prompt="x", **(fields | changes))
        assert caught.value.param == param
    assert client.completions.create(prompt="x", **fields).choices[0].text == "x"
