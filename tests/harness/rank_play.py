"""One hand of requests that goes through everything a row can meet, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bus.messages.requests import GenerationRequest, TextPrompt, TokensPrompt
from bus.messages.tokens import Finished
from tests.harness.slot import FakeGateway, Stream, request

STORY = "Tell a story about a fish and a boat. " * 12

Outcome = dict[str, Any]


def _sampled(**settings: Any) -> dict[str, Any]:
    return {"sampling": {"temperature": 0.0} | settings}


def text_hand() -> list[GenerationRequest]:
    """For a model with a tokenizer: a long prompt, seeds, penalties, logprobs, a grammar, two
    choices; greedy unless said otherwise."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    ask: list[tuple[str, str, dict[str, Any]]] = [
        ("greedy", "Count from one to ten:", {"max_tokens": 24}),
        ("long", STORY, {"max_tokens": 20}),
        ("seeded", "The sea is", _sampled(temperature=0.9, top_p=0.9, seed=7)),
        (
            "penalised",
            "one two one two one two",
            _sampled(frequency_penalty=0.6, presence_penalty=0.3, repetition_penalty=1.2),
        ),
        ("listed", "A shoal moves", {"top_logprobs": 2}),
        (
            "grammar",
            "A person as JSON:",
            {
                "max_tokens": 40,
                "output": {"kind": "json_schema", "json_schema": schema},
                "ignore_eos": False,
            },
        ),
        ("two", "Boats and", {"n": 2} | _sampled(temperature=1.0, seed=3)),
    ]
    return [request(name, prompt, **({"max_tokens": 16} | more)) for name, prompt, more in ask]


def token_hand(count: int = 4) -> list[GenerationRequest]:
    """For any model of 260 tokens: rows of unlike length, some of them long, with logprobs."""
    hand: list[GenerationRequest] = []
    for number in range(count):
        length = (9, 150, 33, 61)[number % 4] + number // 4
        tokens = tuple(3 + (11 * number + 7 * at) % 250 for at in range(length))
        hand.append(
            request(
                f"row-{number}",
                prompt=TokensPrompt(token_ids=tokens),
                max_tokens=14 + 5 * number % 17,
                top_logprobs=0,
            )
        )
    return hand


def said(stream: Stream) -> Outcome:
    """What a client is told."""
    chosen = [
        (choice, one)
        for choice in (0, 1)
        for delta in stream.deltas
        if delta.choice == choice
        for one in delta.logprobs
    ]
    assert isinstance(stream.end, Finished), stream.end
    return {
        "text": [stream.text(0), stream.text(1)],
        "token ids": [(choice, one.token_id) for choice, one in chosen],
        "logprobs": [one.logprob for _, one in chosen],
        "finishes": stream.finishes,
        "tokens": stream.end.usage.completion_tokens,
    }


def play(gateway: FakeGateway, hand: Sequence[GenerationRequest]) -> dict[str, Outcome]:
    """Submit the first half, the rest once the first row speaks; each request's outcome."""
    half = len(hand) // 2
    streams = [gateway.submit(one) for one in hand[:half]]
    gateway.until(lambda: streams[0].tokens > 2 or streams[0].end, "the first row's tokens")
    streams += [gateway.submit(one) for one in hand[half:]]
    gateway.ended(*streams, seconds=50)
    return {one.request_id: said(stream) for one, stream in zip(hand, streams, strict=True)}


def assert_same(found: dict[str, Outcome], wanted: dict[str, Outcome]) -> None:
    """The same to the last token; log-probabilities but for the rounding of float32."""
    assert found.keys() == wanted.keys()
    for name, outcome in wanted.items():
        logprobs = pytest.approx(outcome["logprobs"], abs=5e-3)
        assert found[name] == outcome | {"logprobs": logprobs}


def play_prefix(gateway: FakeGateway) -> tuple[str, int]:
    """A prompt that begins like the long one of before: its text, and the tokens found kept."""
    stream = gateway.submit(request("prefix", STORY + "Once upon", max_tokens=12))
    gateway.ended(stream)
    assert isinstance(stream.end, Finished)
    return stream.text(), stream.end.usage.cached_tokens


def endless(name: str) -> GenerationRequest:
    """Runs for as long as a test may take."""
    return request(name, prompt=TextPrompt(text="The boat goes on"), max_tokens=1500)
