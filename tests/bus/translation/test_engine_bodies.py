"""Requests for an engine of the cluster with vLLM's API: every field is sent, named as ignored, or
refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.translation import EXTRA_FIELDS, NotCarried, Target, translated
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    InputsPrompt,
    OutputFormat,
    PromptQuestion,
    Sampling,
    TextPart,
    TextPrompt,
    TokensPrompt,
    ToolChoice,
    ToolSpec,
)

REQUEST = RequestId("req-n-h0-b-1")
VLLM = Target(
    model="org/m", kind="openai", name="the engine vllm", takes=EXTRA_FIELDS, completes=True
)
BARE = Target(model="org/m", kind="openai", name="the engine vllm", completes=True)
TURN = ChatMessage(role="user", parts=(TextPart(text="x"),))
CHAT = ChatPrompt(messages=(TURN,))
TEXT = TextPrompt(text="x")
REGEX = OutputFormat(kind="regex", rule="a+", field="guided_regex")
SENT: dict[str, tuple[Any, dict[str, Any]]] = {
    "n": (2, {"n": 2}),
    "max_tokens": (9, {"max_tokens": 9}),
    "stop": (("a",), {"stop": ["a"]}),
    "ignore_eos": (True, {"ignore_eos": True}),
    "min_tokens": (3, {"min_tokens": 3}),
    "thinking_budget": (0, {"thinking_token_budget": 0}),
    "output": (REGEX, {"structured_outputs": {"regex": "a+"}}),
}
"""Fields of a request, each with a value and the fields of the body, for both kinds of prompt."""
REFUSED = ("history", "prompt_logprobs", "question", "template")
FOR_RUNNERS = ("request_id", "model", "priority", "client_id", "key_id", "adapter", "trace")
"""Fields that a runner reads itself; `model` and `adapter` become `Target.model`."""
HINTS = ("prediction", "speculate")
"""Fields that can only make an answer faster; some servers refuse them."""
SAMPLING: dict[str, tuple[Any, Any]] = {
    "temperature": (0.0, 0.0),
    "top_p": (0.5, 0.5),
    "top_k": (4, 4),
    "min_p": (0.1, 0.1),
    "seed": (7, 7),
    "frequency_penalty": (1.0, 1.0),
    "presence_penalty": (-1.0, -1.0),
    "repetition_penalty": (1.1, 1.1),
    "logit_bias": ({3: -2.0}, {"3": -2.0}),
}


def request_of(prompt: Any = CHAT, **more: Any) -> GenerationRequest:
    return GenerationRequest(request_id=REQUEST, model=ModelId("m"), prompt=prompt, **more)


def test_each_kind_of_prompt_has_its_path() -> None:
    chat, text = translated(VLLM, request_of()), translated(VLLM, request_of(TEXT))
    tokens = translated(VLLM, request_of(TokensPrompt(token_ids=(5, 6))))
    assert chat.path == "/v1/chat/completions" and chat.fields["messages"][0]["content"] == "x"
    assert text.path == tokens.path == "/v1/completions"
    assert (text.fields["prompt"], tokens.fields["prompt"]) == ("x", [5, 6])
    claude = Target(model="m", kind="anthropic", name="the provider 'claude'")
    assert translated(claude, request_of()).path == "/v1/messages"


@pytest.mark.parametrize("prompt", [CHAT, TEXT], ids=["chat", "text"])
@pytest.mark.parametrize("name", SENT)
def test_a_field_is_sent_in_the_server_s_words(name: str, prompt: Any) -> None:
    value, expected = SENT[name]
    body = translated(VLLM, request_of(prompt, **{name: value}))
    assert expected.items() <= body.fields.items() and body.unheeded == ()


def test_every_field_of_a_request_has_a_case() -> None:
    elsewhere = {"prompt", "sampling", "tool_choice", "parallel_tool_calls", "top_logprobs"}
    elsewhere |= {"thinking", "effort", "variables"}
    assert {*SENT, *REFUSED, *FOR_RUNNERS, *HINTS, *elsewhere} == set(
        GenerationRequest.model_fields
    )


@pytest.mark.parametrize("prompt", [CHAT, TEXT], ids=["chat", "text"])
def test_every_sampling_field_is_sent_or_named(prompt: Any) -> None:
    assert set(SAMPLING) == set(Sampling.model_fields)
    sampling = Sampling(**{name: value for name, (value, _) in SAMPLING.items()})
    body = translated(VLLM, request_of(prompt, sampling=sampling))
    assert {name: body.fields[name] for name in SAMPLING} == {
        name: sent for name, (_, sent) in SAMPLING.items()
    }
    bare = translated(BARE, request_of(prompt, sampling=sampling))
    assert bare.unheeded == ("logit_bias", "min_p", "repetition_penalty", "top_k")
    assert not set(bare.unheeded) & set(bare.fields)


@pytest.mark.parametrize("prompt", [CHAT, TEXT], ids=["chat", "text"])
def test_what_a_bare_server_lacks_is_named(prompt: Any) -> None:
    more: dict[str, Any] = {
        "min_tokens": 2,
        "ignore_eos": True,
        "variables": {"a": 1},
        "thinking": False,
        "thinking_budget": 5,
    }
    body = translated(BARE, request_of(prompt, **more))
    named = {"min_tokens", "ignore_eos", "chat_template_kwargs", "thinking_budget"}
    assert set(body.unheeded) == (named | {"thinking"} if prompt is CHAT else named)
    assert not set(body.fields) & EXTRA_FIELDS


@pytest.mark.parametrize("target", [VLLM, Target("m", "anthropic", "the provider 'claude'")])
def test_a_named_drafter_is_refused_and_other_choices_pass(target: Target) -> None:
    plain = translated(target, request_of())
    assert translated(target, request_of(speculate="off")) == plain
    assert translated(target, request_of(speculate="auto")) == plain
    with pytest.raises(NotCarried, match="use auto or off") as raised:
        translated(target, request_of(speculate="ngram"))
    assert raised.value.field == "x_speculate"


def test_variables_and_thinking_reach_the_template() -> None:
    fields = translated(VLLM, request_of(variables={"a": 1}, thinking=False)).fields
    assert fields["chat_template_kwargs"] == {"a": 1, "enable_thinking": False}
    other = Target("m", "openai", "it", frozenset({"chat_template_kwargs"}), completes=True,
                   thinking_variable="thinking")  # fmt: skip
    body = translated(other, request_of(thinking=True, effort="max"))
    assert body.fields["chat_template_kwargs"] == {"thinking": True}
    assert body.fields["reasoning_effort"] == "max" and body.unheeded == ()


def test_earlier_thinking_is_sent_to_a_server_that_takes_it() -> None:
    turns = (TURN, ChatMessage(role="assistant", reasoning="hm"), TURN)
    request = request_of(ChatPrompt(messages=turns))
    assert translated(VLLM, request).fields["messages"][1]["reasoning"] == "hm"
    bare = translated(BARE, request)
    assert bare.unheeded == ("messages.reasoning",) and "hm" not in json.dumps(bare.fields)


def test_tools_are_sent_with_their_choice() -> None:
    prompt = ChatPrompt(messages=(TURN,), tools=(ToolSpec(name="f"),))
    choice = ToolChoice(mode="named", name="f")
    fields = translated(
        VLLM, request_of(prompt, tool_choice=choice, parallel_tool_calls=False)
    ).fields
    assert fields["tools"][0]["function"]["name"] == "f" and not fields["parallel_tool_calls"]
    assert fields["tool_choice"] == {"type": "function", "function": {"name": "f"}}


def test_an_assistant_s_turn_is_continued() -> None:
    turns = (TURN, ChatMessage(role="assistant", parts=(TextPart(text="y"),)))
    request = request_of(ChatPrompt(messages=turns, continue_final=True))
    fields = translated(VLLM, request).fields
    assert (fields["continue_final_message"], fields["add_generation_prompt"]) == (True, False)


def test_log_probabilities_are_asked_for_by_the_api_of_the_prompt() -> None:
    chat = translated(VLLM, request_of(top_logprobs=0)).fields
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 0)
    assert translated(VLLM, request_of(TEXT, top_logprobs=0)).fields["logprobs"] == 0


@pytest.mark.parametrize("prompt", [CHAT, TEXT], ids=["chat", "text"])
@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (OutputFormat(kind="choice", choices=("a", "b")), {"choice": ["a", "b"]}),
        (OutputFormat(kind="grammar", rule='root ::= "a"'), {"grammar": 'root ::= "a"'}),
    ],
)
def test_formats_other_than_json_become_structured_outputs(
    prompt: Any, output: OutputFormat, expected: dict[str, Any]
) -> None:
    fields = translated(BARE, request_of(prompt, output=output)).fields
    assert fields["structured_outputs"] == expected and "response_format" not in fields


@pytest.mark.parametrize("prompt", [CHAT, TEXT], ids=["chat", "text"])
def test_json_stays_a_response_format(prompt: Any) -> None:
    request = request_of(prompt, output=OutputFormat(kind="json_object"))
    assert translated(BARE, request).fields["response_format"] == {"type": "json_object"}


def test_a_raw_prompt_always_has_a_limit() -> None:
    """The default of the API is 16 tokens."""
    assert translated(VLLM, request_of(TEXT)).fields["max_tokens"] == 4096
    assert "max_tokens" not in translated(VLLM, request_of()).fields


@pytest.mark.parametrize(
    ("prompt", "more", "field"),
    [
        (CHAT, {"history": (1,)}, "history"),
        (TEXT, {"history": (1,)}, "history"),
        (TEXT, {"prompt_logprobs": 0}, "prompt_logprobs"),
        (CHAT, {"question": PromptQuestion(wants="count")}, "prompt"),
        (TEXT, {"question": PromptQuestion(wants="tokens")}, "prompt"),
        (CHAT, {"template": "{{ .Prompt }}"}, "template"),
        (TEXT, {"thinking": True}, "thinking"),
        (TEXT, {"tool_choice": ToolChoice(mode="required")}, "tool_choice"),
        (TextPrompt(text="x", suffix="y"), {}, "suffix"),
        (InputsPrompt(inputs=("x",)), {}, "model"),
    ],
)
def test_what_no_engine_does_is_refused_by_its_field(
    prompt: Any, more: dict[str, Any], field: str
) -> None:
    with pytest.raises(NotCarried) as raised:
        translated(VLLM, request_of(prompt, **more))
    assert raised.value.field == field and str(raised.value) == f"{field}: {raised.value.why}"


def test_a_raw_prompt_for_another_server_is_refused() -> None:
    with pytest.raises(NotCarried, match="accepts only conversations"):
        translated(Target("m", "openai", "the provider 'cloud'"), request_of(TEXT))


@settings(max_examples=50)
@given(st.integers(-(2**63), 2**64 - 1))
def test_seeds_stay_apart_in_64_bits_with_a_sign(seed: int) -> None:
    sent = translated(VLLM, request_of(sampling=Sampling(seed=seed))).fields["seed"]
    assert -(2**63) <= sent < 2**63 and (sent - seed) % 2**64 == 0


@settings(max_examples=50)
@given(
    st.sampled_from([CHAT, TEXT, TokensPrompt(token_ids=(1,))]),
    st.sets(st.sampled_from(sorted(EXTRA_FIELDS))),
    st.sets(st.sampled_from(sorted(SAMPLING))),
    st.sets(st.sampled_from(sorted(SENT))),
)
def test_a_body_is_json_and_has_no_field_that_the_server_lacks(
    prompt: Any, takes: set[str], drawn: set[str], names: set[str]
) -> None:
    target = Target("m", "openai", "it", frozenset(takes), completes=True)
    sampling = Sampling(**{name: SAMPLING[name][0] for name in drawn})
    request = request_of(prompt, sampling=sampling, **{name: SENT[name][0] for name in names})
    body = translated(target, request)
    assert json.loads(json.dumps(body.fields)) == body.fields
    assert not set(body.fields) & (EXTRA_FIELDS - takes)
    assert not set(body.fields) & set(body.unheeded)


@pytest.mark.parametrize(
    "more",
    [
        {"kind": "openai", "takes": frozenset({"top_a"})},
        {"kind": "anthropic", "takes": frozenset({"top_k"})},
        {"kind": "anthropic", "completes": True},
    ],
)
def test_a_target_with_fields_that_cannot_be_sent_is_an_error(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="takes"):
        Target(model="m", name="it", **more)
