"""What a derived model adds to a request, and what the request keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.wire.ids import ModelId
from bus.wire.messages.derived import DerivedModel, DerivedTurn
from bus.wire.messages.requests import ChatPrompt, GenerationRequest, Sampling
from gateway.dialects.anthropic.dialect import AnthropicMessages
from gateway.dialects.dialect import Dialect
from gateway.dialects.faults import HttpFaultRaised
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.completions import OpenAICompletions
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.requests.derived import check_templates, completed, in_manner, priority_of
from tests.gateway.dialects.conftest import Desk

BASE = ModelId("base")
MINE = DerivedModel(
    name=ModelId("mine"),
    base=BASE,
    system="Be brief.",
    turns=(DerivedTurn(role="user", content="Hello"), DerivedTurn(role="assistant", content="Hi")),
    sampling=Sampling(temperature=0.25, top_p=0.5),
    sampled=("temperature", "top_p"),
    max_tokens=9,
    stop=("x",),
)
TALK: dict[str, Any] = {"model": "mine", "messages": [{"role": "user", "content": "Why?"}]}
CARD = DerivedModel(
    name=BASE,
    base=BASE,
    system="Be kind.",
    sampling=Sampling(top_p=0.75, min_p=0.125),
    sampled=("min_p", "top_p"),
    stop=("y",),
    thinking=False,
)
"""What a model's own card says."""
BODIES: tuple[tuple[Dialect, dict[str, Any]], ...] = (
    (OllamaChat(), TALK),
    (OllamaGenerate(), {"model": "mine", "prompt": "Why?"}),
    (OpenAIChat(), TALK),
    (OpenAIResponses(), {"model": "mine", "input": "Why?"}),
    (AnthropicMessages(), {**TALK, "max_tokens": 9}),
)


def asked(dialect: Dialect, body: dict[str, Any]) -> GenerationRequest:
    [request] = dialect.parse(json.dumps(body).encode(), Desk().context()).requests
    return completed(request, BASE, MINE)


def turns_of(request: GenerationRequest) -> list[tuple[str, str]]:
    assert isinstance(request.prompt, ChatPrompt)
    said = request.prompt.messages
    return [
        (one.role, "".join(part.text for part in one.parts if part.kind == "text")) for one in said
    ]


@pytest.mark.parametrize(("dialect", "body"), BODIES, ids=lambda one: getattr(one, "name", ""))
def test_every_dialects_request_gets_what_it_does_not_say(
    dialect: Dialect, body: dict[str, Any]
) -> None:
    request = asked(dialect, body)
    assert (request.model, request.max_tokens, request.stop) == (BASE, 9, ("x",))
    assert (request.sampling.temperature, request.sampling.top_p) == (0.25, 0.5)
    assert turns_of(request) == [
        ("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi"), ("user", "Why?"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (OllamaChat(), {**TALK, "options": {"temperature": 1, "num_predict": 2, "stop": ["y"]}}),
        (OpenAIChat(), {**TALK, "temperature": 1, "max_tokens": 2, "stop": "y"}),
        (
            AnthropicMessages(),
            {**TALK, "temperature": 1, "max_tokens": 2, "stop_sequences": ["y"]},
        ),
    ],
)
def test_what_the_request_says_stays(dialect: Dialect, body: dict[str, Any]) -> None:
    request = asked(dialect, body)
    assert (request.max_tokens, request.stop) == (2, ("y",))
    assert (request.sampling.temperature, request.sampling.top_p) == (1.0, 0.5)


def test_a_conversation_with_a_system_prompt_keeps_its_own() -> None:
    body = {"model": "mine", "messages": [{"role": "system", "content": "s"}, *TALK["messages"]]}
    turns = turns_of(asked(OpenAIChat(), body))
    assert turns == [("system", "s"), ("user", "Hello"), ("assistant", "Hi"), ("user", "Why?")]
    generate = {"model": "mine", "prompt": "Why?", "system": "s"}
    assert turns_of(asked(OllamaGenerate(), generate)) == turns


def test_a_raw_prompt_and_one_with_a_history_get_no_turns() -> None:
    request = asked(OpenAICompletions(), {"model": "mine", "prompt": "Why?"})
    assert request.prompt.kind == "text" and request.sampling.temperature == 0.25
    later = asked(OllamaGenerate(), {"model": "mine", "prompt": "Why?", "context": [1, 2]})
    assert turns_of(later) == [("user", "Why?")] and later.max_tokens == 9


def test_a_model_that_is_none_of_others_makes_a_request_its_own_and_no_more() -> None:
    [request] = OpenAIChat().parse(json.dumps(TALK).encode(), Desk().context()).requests
    assert completed(request, BASE, None) == request.model_copy(update={"model": BASE})


@pytest.mark.parametrize(
    ("body", "system"),
    [
        ({"model": "mine"}, "Be brief.\n\nNow!"),
        ({"model": "mine", "instructions": "Be kind."}, "Be kind.\n\nNow!"),
    ],
)
def test_a_manner_ends_the_system_prompt_also_of_a_derived_model(
    body: dict[str, Any], system: str
) -> None:
    request = in_manner(asked(OpenAIResponses(), {**body, "input": "Why?"}), "Now!")
    turns = turns_of(request)
    assert turns[0] == ("system", system) and turns[-1] == ("user", "Why?")
    assert len(turns) == 4


def test_a_manner_is_a_system_prompt_where_there_is_none() -> None:
    [request] = OpenAIChat().parse(json.dumps(TALK).encode(), Desk().context()).requests
    assert turns_of(in_manner(request, "Now!")) == [("system", "Now!"), ("user", "Why?")]
    assert in_manner(request, "") is request
    raw = asked(OpenAICompletions(), {"model": "mine", "prompt": "Why?"})
    assert in_manner(raw, "Now!") is raw


@pytest.mark.parametrize(("dialect", "body"), BODIES, ids=lambda one: getattr(one, "name", ""))
def test_every_dialects_conversation_is_refused_by_a_model_with_a_go_template(
    dialect: Dialect, body: dict[str, Any]
) -> None:
    requests = dialect.parse(json.dumps(body).encode(), Desk().context()).requests
    check_templates(requests, MINE, None)
    templated = MINE.model_copy(update={"template": "{{ .Prompt }}"})
    for name, card, remedy in (
        (templated, None, "make it again without TEMPLATE"),
        (MINE, templated, f"`shoal card edit {MINE.name}` and delete it"),
    ):
        with pytest.raises(HttpFaultRaised) as refused:
            check_templates(requests, name, card)
        fault = refused.value.fault
        assert (fault.status, fault.field) == (400, "model")
        assert f"shoal runs no Go templates; {remedy}" in fault.message


def test_a_raw_prompt_needs_no_template() -> None:
    raw = asked(OpenAICompletions(), {"model": "mine", "prompt": "a"})
    check_templates([raw], MINE.model_copy(update={"template": "{{ .Prompt }}"}), None)


@pytest.mark.parametrize(("dialect", "body"), BODIES, ids=lambda one: getattr(one, "name", ""))
def test_a_models_own_card_adds_what_neither_the_request_nor_the_derived_model_says(
    dialect: Dialect, body: dict[str, Any]
) -> None:
    both = completed(asked(dialect, body), BASE, CARD)
    sampling = both.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.25, 0.5, 0.125)
    assert both.stop == ("x",)
    [plain] = dialect.parse(json.dumps(body).encode(), Desk().context()).requests
    alone = completed(plain, BASE, CARD)
    assert alone.stop == ("y",) and alone.sampling.top_p == 0.75
    if isinstance(plain.prompt, ChatPrompt):
        assert turns_of(alone)[0] == ("system", "Be kind.") and alone.thinking is False
        assert turns_of(both)[0] == ("system", "Be brief.")


def test_a_request_that_says_how_much_to_think_is_not_told_by_the_card() -> None:
    body = {**TALK, "reasoning_effort": "high"}
    [plain] = OpenAIChat().parse(json.dumps(body).encode(), Desk().context()).requests
    assert completed(plain, BASE, CARD).thinking == plain.thinking


def test_a_cards_priority_is_that_of_requests_that_name_none() -> None:
    low = DerivedModel(name=BASE, base=BASE, priority=20)
    plain = asked(OpenAIChat(), TALK)
    assert priority_of(plain, low, is_set=False) == 20
    assert priority_of(plain, low, is_set=True) == 10, "the client said that it is normal"
    assert priority_of(plain, None, is_set=False) == priority_of(plain, CARD, is_set=False) == 10
    flex = plain.model_copy(update={"priority": 5})
    assert priority_of(flex, low, is_set=False) == 5, "a tier says it"
