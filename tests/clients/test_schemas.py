"""What a schema promises and costs: seeded schemas, asked of a running node with its model.

Every answer that the limit did not cut is judged by the `jsonschema` library. Ten schemas;
SHOAL_PROVE=1 takes 200, and prints what they cost. No figure is held.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai import OpenAI

from tests.harness.random_schemas import kinds_within, random_schema

jsonschema = pytest.importorskip("jsonschema", reason="it is among the dev requirements")
PROVING = bool(os.environ.get("SHOAL_PROVE"))
COUNT = 200 if PROVING else 10
QUESTION = "Tell me of the sea."
KEYWORDS = {"properties", "items", "anyOf", "enum", "const", "$ref", "pattern", "minimum"}


def body(schema: dict[str, Any] | None, seed: int, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": QUESTION}],
        "reasoning_effort": "none",
        "temperature": 1.0 if seed % 2 else 0.0,
        "seed": seed,
        "max_tokens": 200,
        **more,
    }
    if schema is not None:
        form = {"type": "json_schema", "json_schema": {"name": "drawn", "schema": schema}}
        fields["response_format"] = form
    return fields


def first_token_s(client: OpenAI, model: str, schema: dict[str, Any] | None) -> float:
    """Seconds from asking to the first piece of text."""
    began = time.perf_counter()
    fields = body(schema, 0, max_tokens=2)
    stream = client.chat.completions.create(model=model, stream=True, **fields)
    with stream:
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                return time.perf_counter() - began
    raise AssertionError("there was no text")


def token_s(answer: Any) -> Iterator[float]:
    """Seconds of each token after the first, where there are some."""
    tokens = answer.usage.completion_tokens - 1
    if tokens >= 8:
        yield answer.timing["decode_seconds"] / tokens


def told(name: str, seconds: list[float]) -> str:
    return f"{name} {statistics.median(seconds) * 1000:.1f} ms"


@dataclass
class Costs:
    """What schemas cost: seconds to the first token and of each token, with and without one."""

    cold: list[float] = field(default_factory=list[float])
    warm: list[float] = field(default_factory=list[float])
    bare: list[float] = field(default_factory=list[float])
    held: list[float] = field(default_factory=list[float])
    free: list[float] = field(default_factory=list[float])

    def of_first_tokens(self, client: OpenAI, model: str, schema: dict[str, Any]) -> None:
        """Ask before anything else is asked with this schema."""
        self.bare.append(first_token_s(client, model, None))
        self.cold.append(first_token_s(client, model, schema))
        self.warm.append(first_token_s(client, model, schema))

    def of_tokens(self, client: OpenAI, model: str, seed: int, answer: Any) -> None:
        """Add an answer to a schema, and ask for as much without one."""
        self.held.extend(token_s(answer))
        length = answer.usage.completion_tokens
        more: dict[str, Any] = {"max_tokens": length, "extra_body": {"ignore_eos": True}}
        self.free.extend(
            token_s(client.chat.completions.create(model=model, **body(None, seed, **more)))
        )

    def tell(self) -> None:
        print(told("a token without a schema", self.free), told("with one", self.held), end=", ")
        print(f"ratio {statistics.median(self.held) / statistics.median(self.free):.2f}")
        print(
            told("first token without a schema", self.bare),
            told("cold", self.cold),
            told("warm", self.warm),
        )


@pytest.mark.proof
@pytest.mark.timeout(60 + 12 * COUNT)
def test_answers_obey_schemas_of_all_kinds_and_what_that_costs(client: OpenAI, model: str) -> None:
    schemas = [random_schema(seed) for seed in range(COUNT)]
    assert set().union(*map(kinds_within, schemas)) >= KEYWORDS
    costs = Costs()
    cut = 0
    for seed, schema in enumerate(schemas):
        if PROVING:
            costs.of_first_tokens(client, model, schema)
        answer = client.chat.completions.create(model=model, **body(schema, seed))
        if PROVING:
            costs.of_tokens(client, model, seed, answer)
        [choice] = answer.choices
        if choice.finish_reason == "length":
            cut += 1
            continue
        assert choice.finish_reason == "stop"
        validator = jsonschema.Draft202012Validator(schema)
        faults = list(validator.iter_errors(json.loads(choice.message.content)))
        assert not faults, (seed, schema, choice.message.content, faults[0].message)
    print(f"{COUNT} schemas, {cut} answers cut by the limit, all others valid")
    if PROVING:
        costs.tell()
    assert cut <= COUNT // 2, "the limit cut most answers: nothing was shown of them"
