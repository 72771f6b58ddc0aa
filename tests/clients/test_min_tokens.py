"""`min_tokens` of a running node: neither an end token nor a stop string ends a text before it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

Ask = Callable[..., Any]
SHORT = "What is the capital of France?"
LEAST = 40


def counted(answer: Any) -> tuple[str, int]:
    return answer.choices[0].message.content, answer.usage.completion_tokens


def test_a_text_goes_on_until_it_has_so_many_tokens_and_not_for_ever(ask: Ask) -> None:
    short, own = counted(ask(SHORT))
    assert own < LEAST
    answer = ask(SHORT, extra_body={"min_tokens": LEAST})
    text, count = counted(answer)
    assert count >= LEAST
    assert text.startswith(short.rstrip())
    # the end token is one of them
    assert counted(ask(SHORT, extra_body={"min_tokens": own - 1})) == (short, own)
    exact = ask(SHORT, max_tokens=LEAST, extra_body={"min_tokens": LEAST})
    assert exact.usage.completion_tokens == LEAST


@pytest.mark.parametrize("temperature", [pytest.param(0, marks=pytest.mark.proof), 1.0])
def test_it_says_the_same_alone_beside_others_and_streamed(ask: Ask, temperature: float) -> None:
    fields: dict[str, Any] = {"temperature": temperature, "seed": 3, "max_tokens": 80}

    def said(least: int) -> tuple[str, int]:
        return counted(ask(SHORT, extra_body={"min_tokens": least}, **fields))

    leasts = [0, 10, 30, 60]
    alone = [said(least) for least in leasts]
    assert all(count >= least for (_, count), least in zip(alone, leasts, strict=True))
    with ThreadPoolExecutor(len(leasts)) as pool:
        assert list(pool.map(said, leasts)) == alone
    chunks = ask(SHORT, extra_body={"min_tokens": 30}, stream=True, **fields)
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert text == alone[2][0]


def test_a_stop_string_ends_a_text_only_after_it(client: OpenAI, model: str) -> None:
    def said(**more: Any) -> Any:
        return client.completions.create(
            model=model, prompt="1, 2, 3, 4,", max_tokens=60, temperature=0, **more
        )

    free = said(extra_body={"ignore_eos": True}).choices[0].text
    early = said(stop=",", extra_body={"ignore_eos": True})
    late = said(stop=",", extra_body={"ignore_eos": True, "min_tokens": 12})
    assert free.count(",") > 3
    assert "," not in early.choices[0].text
    assert late.choices[0].finish_reason == "stop"
    assert free.startswith(late.choices[0].text + ",")
    assert "," in late.choices[0].text
    assert late.usage.completion_tokens > 12 > early.usage.completion_tokens


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"extra_body": {"min_tokens": 9}, "max_tokens": 8}, marks=pytest.mark.proof),
        {"extra_body": {"min_tokens": 5000}, "max_tokens": None},
        *(
            pytest.param(fields, marks=pytest.mark.proof)
            for fields in (
                {"extra_body": {"min_tokens": 5, "guided_choice": ["a"]}},
                {"extra_body": {"min_tokens": 5}, "response_format": {"type": "json_object"}},
                {"extra_body": {"min_tokens": -1}},
            )
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(ask: Ask, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(SHORT, **fields)
    assert caught.value.param == "min_tokens"
