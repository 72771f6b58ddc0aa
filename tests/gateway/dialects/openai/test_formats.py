"""What the text must be, by all of its names, in chat completions and completions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bus.wire.messages.requests import OutputFormat
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.completions import OpenAICompletions
from tests.harness.text_forms import FORMS, SCHEMA, TextForm

CHAT, COMPLETIONS = OpenAIChat(), OpenAICompletions()
CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BOTH = [(CHAT, CHAT_BODY), (COMPLETIONS, {"model": "m", "prompt": "hi"})]
NAMES = [form.name for form in FORMS]


@pytest.fixture(params=BOTH, ids=["chat", "completions"])
def ask(request: pytest.FixtureRequest, desk: Any) -> Any:
    dialect, body = request.param
    return lambda **more: desk.parse(dialect, {**body, **more}).requests[0].output


@pytest.fixture(params=BOTH, ids=["chat", "completions"])
def refusal(request: pytest.FixtureRequest, desk: Any) -> Any:
    dialect, body = request.param
    return lambda **more: desk.refusal(dialect, {**body, **more})


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_a_form_is_read_by_each_of_its_names(ask: Any, form: TextForm) -> None:
    assert ask(**form.sent) == form.output


def test_without_one_the_text_is_free(ask: Any) -> None:
    nothing: dict[str, Any] = {"grammar": "", "structured_outputs": {"json_object": False}}
    for sent in ({}, nothing, {"response_format": {"type": "text"}}):
        assert ask(**sent) == OutputFormat()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pair
        for pair in itertools.pairwise((*FORMS, FORMS[0]))
        if pair[0].sent.keys().isdisjoint(pair[1].sent)
    ],
)
def test_two_at_a_time_are_refused_by_both_names(
    refusal: Any, first: TextForm, second: TextForm
) -> None:
    refused = refusal(**first.sent, **second.sent)
    assert refused.field in (first.name, second.name)
    assert first.name in refused.message
    assert second.name in refused.message


def test_two_within_structured_outputs_are_refused_by_both_names(refusal: Any) -> None:
    refused = refusal(structured_outputs={"regex": "a", "choice": ["a"]})
    assert refused.field == "structured_outputs.choice"
    assert "structured_outputs.regex and structured_outputs.choice" in refused.message


BAD: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[]"}, "guided_json"),
    ({"guided_json": "[" * 100_000}, "guided_json"),
    ({"guided_json": '{"a":' * 70 + "1" + "}" * 70}, "guided_json"),
    ({"guided_json": []}, "guided_json"),
    ({"json_schema": True}, "json_schema"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_regex": 5}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": [""]}, "guided_choice"),
    ({"guided_choice": ["a", 5]}, "guided_choice[1]"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"guided_grammar": ""}, "guided_grammar"),
    ({"ebnf": ""}, "ebnf"),
    ({"structured_outputs": "json"}, "structured_outputs"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    ({"structured_outputs": {"json": "no"}}, "structured_outputs.json"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
    ({"structured_outputs": {"disable_any_whitespace": True}},
     "structured_outputs.disable_any_whitespace"),
    ({"structured_outputs": {"disable_additional_properties": True}},
     "structured_outputs.disable_additional_properties"),
    ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx"),
    ({"response_format": {"type": "json_object", "schema": []}}, "response_format.schema"),
    ({"structural_tag": "{}"}, "structural_tag"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"grammar": "root ::= [a]", "grammar_lazy": True}, "grammar_lazy"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "field"), BAD, ids=[f"{i}-{f}" for i, (_, f) in enumerate(BAD)])
def test_what_is_no_form_is_refused_by_its_field(
    refusal: Any, sent: dict[str, Any], field: str
) -> None:
    refused = refusal(**sent)
    assert refused.field == field
    assert field in refused.message


def test_a_schema_is_read_the_same_as_an_object_and_as_its_text(ask: Any) -> None:
    text = '{"type": "string", "enum": ["\\u00fc"]}'
    assert ask(guided_json=text).json_schema == {"type": "string", "enum": ["ü"]}
    assert ask(json_schema=SCHEMA).json_schema == SCHEMA
