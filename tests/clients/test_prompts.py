"""What is told of prompts by a running node agrees with what it generates from."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import OpenAI

HI: list[dict[str, Any]] = [{"role": "user", "content": "Naïve Grüße, 日本 🐟!"}]
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def told(node_url: str, model: str) -> Any:
    def asked(path: str, **fields: Any) -> dict[str, Any]:
        answer = httpx.post(f"{node_url}{path}", json={"model": model, **fields}, timeout=90)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return asked


@pytest.mark.parametrize("more", [pytest.param({}, marks=pytest.mark.proof), {"tools": [TOOL]}])
def test_a_conversation_has_the_tokens_that_its_answer_counts(
    told: Any, client: OpenAI, model: str, more: dict[str, Any]
) -> None:
    listed = told("/tokenize", messages=HI, **more)
    fields: Any = {"model": model, "messages": HI, "max_tokens": 1, **more}
    usage = client.chat.completions.create(**fields).usage
    assert usage is not None
    assert listed["count"] == len(listed["tokens"]) == usage.prompt_tokens
    assert listed["max_model_len"] > 0
    text = told("/apply-template", messages=HI, **more)["prompt"]
    assert told("/detokenize", tokens=listed["tokens"])["prompt"] == text
    assert HI[0]["content"] in text


def test_the_tokens_of_a_text_are_those_that_a_completion_reads(
    told: Any, client: OpenAI, model: str
) -> None:
    tokens = told("/tokenize", prompt="The quick brown")["tokens"]
    fields: Any = {"model": model, "max_tokens": 8, "temperature": 0}
    by_text = client.completions.create(prompt="The quick brown", **fields)
    by_tokens = client.completions.create(prompt=tokens, **fields)
    assert by_text.choices[0].text == by_tokens.choices[0].text
    assert by_text.usage is not None and by_text.usage.prompt_tokens == len(tokens)


@pytest.mark.proof
def test_text_comes_back_from_its_tokens_as_llama_cpp_has_it(told: Any, node_url: str) -> None:
    text = "Grüße 🐟\n\tdef f(): <x>"
    tokens = told("/tokenize", content=text)["tokens"]
    assert told("/detokenize", tokens=tokens)["content"] == text
    alone = httpx.post(f"{node_url}/tokenize", json={"content": text}, timeout=90).json()
    assert alone["tokens"] == tokens


def test_what_is_no_token_or_no_model_is_refused_by_name(node_url: str, model: str) -> None:
    body = {"model": model, "tokens": [2**30]}
    refused = httpx.post(f"{node_url}/detokenize", json=body, timeout=90)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tokens"
    unknown = httpx.post(f"{node_url}/tokenize", json={"model": "none-such", "prompt": "x"})
    assert unknown.status_code == 404 and unknown.json()["error"]["param"] == "model"
