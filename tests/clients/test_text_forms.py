"""Texts held to a form, by all of its names, asked of a running node by the official client."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.harness.text_forms import CHOICES, FORMS, GRAMMAR, PATTERN, TextForm

NAMES = [form.name for form in FORMS]
QUESTION = "Tell me of the sea."
THINK, CALL = "What is the capital of France?", "What is the weather in Paris?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}
Ask = Callable[..., Any]


def unnamed(form: TextForm) -> bool:
    """Whether a form is free enough for a model to talk until it is cut."""
    return form.output.kind == "json_object"


ONE_OF_EACH = {form.output.kind: form for form in FORMS}
"""A form of each kind; that its other names are read as the same form is shown without a node."""


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=() if form in ONE_OF_EACH.values() else pytest.mark.proof)
        for form in FORMS
    ],
    ids=NAMES,
)
def test_a_chat_completion_keeps_to_its_form_greedy_or_drawn(ask: Ask, form: TextForm) -> None:
    for temperature in (0, 1.5):
        answer = ask(QUESTION, temperature=temperature, seed=5, max_tokens=60, extra_body=form.sent)
        [choice] = answer.choices
        assert choice.finish_reason == "stop" or unnamed(form)
        assert choice.finish_reason == "length" or form.fits(choice.message.content)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=() if kind in ("json_schema", "grammar") else pytest.mark.proof)
        for kind, form in ONE_OF_EACH.items()
    ],
    ids=ONE_OF_EACH,
)
def test_a_completion_keeps_to_its_form_streamed_or_not(
    client: OpenAI, model: str, form: TextForm
) -> None:
    fields: dict[str, Any] = {
        "model": model,
        "prompt": "The sea",
        "max_tokens": 200,
        "temperature": 0,
        "extra_body": form.sent,
    }
    [choice] = client.completions.create(**fields).choices
    assert choice.finish_reason == "stop" or unnamed(form)
    assert choice.finish_reason == "length" or form.fits(choice.text)
    chunks = client.completions.create(stream=True, **fields)
    assert "".join(one.choices[0].text for one in chunks if one.choices) == choice.text


def test_rows_of_several_forms_together_say_what_each_says_alone(ask: Ask) -> None:
    def said(form: TextForm) -> str:
        return (
            ask(QUESTION, temperature=1.0, seed=9, extra_body=form.sent).choices[0].message.content
        )

    forms = [form for form in FORMS if not unnamed(form)][::2]
    alone = [said(form) for form in forms]
    with ThreadPoolExecutor(len(forms)) as pool:
        assert list(pool.map(said, forms)) == alone


@pytest.mark.proof
def test_thinking_comes_before_the_form_and_is_free_of_it(ask: Ask) -> None:
    answer = ask(THINK, reasoning_effort="high", extra_body={"guided_choice": CHOICES})
    message = answer.choices[0].message
    assert message.reasoning_content
    assert message.reasoning_content not in CHOICES
    assert message.content in CHOICES


def test_with_tools_the_answer_is_a_call_or_keeps_to_the_form(ask: Ask) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "extra_body": {"guided_regex": PATTERN}}
    called = ask(CALL, **fields).choices[0]
    assert called.finish_reason == "tool_calls"
    assert called.message.tool_calls[0].function.name == "get_weather"
    said = ask(CALL, tool_choice="none", **fields).choices[0]
    assert re.fullmatch(PATTERN, said.message.content)


@pytest.mark.proof
def test_line_breaks_that_a_grammar_ends_with_are_part_of_the_text(ask: Ask) -> None:
    for more in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        answer = ask(QUESTION, extra_body={"guided_grammar": 'root ::= " ab\\n\\n"'}, **more)
        assert answer.choices[0].message.content == " ab\n\n"


def test_a_text_that_is_cut_is_the_beginning_of_one_that_fits(ask: Ask) -> None:
    fields: dict[str, Any] = {"extra_body": {"guided_grammar": GRAMMAR}, "temperature": 0}
    whole = ask(QUESTION, **fields).choices[0].message.content
    cut = ask(QUESTION, max_completion_tokens=2, **fields).choices[0]
    assert cut.finish_reason == "length"
    assert whole.startswith(cut.message.content)


@pytest.mark.proof
def test_two_forms_at_once_are_a_400_that_names_both(ask: Ask) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(QUESTION, extra_body={"guided_regex": "a", "guided_choice": ["a"]})
    assert "guided_regex" in caught.value.message
    assert "guided_choice" in caught.value.message


HOSTILE: list[dict[str, Any]] = [
    {"guided_regex": "("},
    {"guided_regex": r"\bword\b"},
    {"guided_regex": "((a|b|ab)*" * 200 + ")" * 200},
    {"guided_regex": "(a{1000}){1000}"},
    {"guided_regex": "(" * 30_000 + ")" * 30_000},
    {"guided_grammar": "root ::= root"},
    {"guided_grammar": "start: /a/"},
    {"guided_grammar": "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)) + '\nr5000 ::= "a"'},
    {"grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000},
    {"guided_choice": ["a"] * 1001},
    {"guided_choice": ["a" * 70_000]},
    {"guided_json": {"type": "string", "pattern": "(?=a)b"}},
    {"structured_outputs": {"json": {"type": "banana"}}},
]


@pytest.mark.proof
def test_a_hostile_rule_is_refused_by_its_field_while_others_stream_on(
    client: OpenAI, model: str, ask: Ask
) -> None:
    at: list[float] = []
    messages: Any = [{"role": "user", "content": QUESTION}]
    stream = client.chat.completions.create(
        model=model, messages=messages, max_tokens=600, stream=True, extra_body={"ignore_eos": True}
    )

    def read() -> None:
        at.extend(time.monotonic() for _ in stream)

    reader = threading.Thread(target=read)
    reader.start()
    for sent in HOSTILE:
        began = time.monotonic()
        with pytest.raises(openai.BadRequestError) as caught:
            ask(QUESTION, extra_body=sent)
        [field] = sent
        assert str(caught.value.param).startswith(field)
        print(f"{field}: {time.monotonic() - began:.3f} s, {str(caught.value)[:90]}")
    reader.join(60)
    assert len(at) > 500
    gaps = [after - before for before, after in itertools.pairwise(at)]
    print(f"the longest pause of the stream beside them: {max(gaps):.3f} s")
