from __future__ import annotations

from typing import Any

import pytest

from bus.wire.errors import BadRequest
from gateway.dialects.dialect import Limits
from gateway.dialects.openai.bodies import REFUSED_CHAT
from gateway.dialects.openai.chat import OpenAIChat

CHAT = OpenAIChat()
USER = {"role": "user", "content": "hi"}
TEXT = {"type": "text", "text": "a"}
IMAGE = {"type": "image_url"}


def _tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _body(**more: Any) -> dict[str, Any]:
    return {"model": "shoal-tiny", "messages": [USER], **more}


INF = float("inf")
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "../../etc"}, "model"),
    ({"model": 5}, "model"),
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [USER, "hi"]}, "messages[1].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [USER, {"role": "user", "content": [{"type": "text", "text": 5}]}]},
     "messages[1].content[0].text"),
    ({"messages": [{"role": "user", "content": [TEXT, {"type": "input_audio"}]}]},
     "messages[0].content[1].type"),
    ({"messages": [{"role": "user", "content": [{**IMAGE, "image_url": {}}]}]},
     "messages[0].content[0].image_url.url"),
    ({"messages": [{"role": "system", "content": [TEXT, {**IMAGE, "image_url": {"url": "x"}}]}]},
     "messages[0].content[1].type"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{**CALL, "id": None}]}]},
     "messages[0].tool_calls[0].id"),
    ({"messages": [{"role": "assistant", "content": "a", "function_call": {"name": "f"}}]},
     "messages[0].function_call.arguments"),
    ({"messages": [{"role": "function", "content": "a"}]}, "messages[0].name"),
    ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
    ({"functions": [{}]}, "functions[0].name"),
    ({"functions": [{"name": "f"}], "tools": [_tool("f")]}, "tools"),
    ({"functions": [{"name": "f"}], "tool_choice": "auto"}, "tool_choice"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call.name"),
    ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call"),
    ({"tools": [_tool("f")], "function_call": "auto"}, "function_call"),
    ({"messages": [{"role": "tool", "content": "42"}]}, "messages[0].tool_call_id"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": True}, "n"),
    ({"n": "2"}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"max_completion_tokens": "many"}, "max_completion_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "warm"}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_p": INF}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 2.5}, "top_k"),
    ({"min_p": -1}, "min_p"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"presence_penalty": -3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**64}, "seed"),
    ({"seed": "lucky"}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": [str(one) for one in range(17)]}, "stop"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias.a"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
    ({"logit_bias": {str(one): 1 for one in range(1025)}}, "logit_bias"),
    ({"logprobs": 3}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usge": True}}, "stream_options.include_usge"),
    ({"reasoning_effort": "heroic"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"enable_thinkin": 1}}, "chat_template_kwargs.enable_thinkin"),
    ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
     "chat_template_kwargs.enable_thinking"),
    ({"reasoning_effort": "none", "enable_thinking": True}, "enable_thinking"),
    ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "thinking.type"),
    ({"thinking_budget": -2}, "thinking_budget"),
    ({"thinking_budget": 2, "reasoning": {"max_tokens": 3}}, "reasoning.max_tokens"),
    ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
    ({"thinking": {"type": "on"}}, "thinking.type"),
    ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs.a b"),
    ({"chat_template_kwargs": {"deep": {"a": 1}}}, "chat_template_kwargs.deep"),
    ({"chat_template_kwargs": {"long": "x" * 4097}}, "chat_template_kwargs.long"),
    ({"chat_template_kwargs": {"large": 2**63}}, "chat_template_kwargs.large"),
    ({"chat_template_kwargs": {f"v{one}": 1 for one in range(17)}}, "chat_template_kwargs"),
    ({"response_format": "json"}, "response_format.type"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
     "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}},
     "response_format.json_schema.schema"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"custom": {}}]}, "tools[0].type"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [_tool("f"), _tool("f")]}, "tools[1].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tools": [_tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}},
     "tool_choice.function.name"),
    ({"tools": [_tool("f")], "tool_choice": {"type": "any"}}, "tool_choice.type"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"store": "yes"}, "store"),
    ({"store": True, "metadata": "a"}, "metadata"),
    ({"store": True, "metadata": {"a": 1}}, "metadata.a"),
    ({"store": True, "metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"store": True, "metadata": {"x" * 65: "a"}}, "metadata." + "x" * 64),
    ({"store": True, "metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ({"service_tier": "fast"}, "service_tier"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"verbosity": "higher"}, "verbosity"),
    ({"user": 5}, "user"),
    ({"x_priority": "asap"}, "x_priority"),
    ({"x_priority": -1}, "x_priority"),
    ({"x_priority": True}, "x_priority"),
    ({"x_client_id": 5}, "x_client_id"),
    ({"x_timeout_s": 0}, "x_timeout_s"),
    ({"x_stay_warm": "long"}, "x_stay_warm"),
    ({"x_cooldown": -1}, "x_cooldown"),
    ({"x_trace": "yes"}, "x_trace"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 1.5}, "min_tokens"),
    ({"guided_regex": ""}, "guided_regex"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "field"), REFUSED, ids=[f"{index}-{field}" for index, (_, field) in enumerate(REFUSED)]
)
def test_a_field_is_refused_by_name(desk: Any, sent: dict[str, Any], field: str) -> None:
    refusal = desk.refusal(CHAT, _body(**sent))
    assert refusal.field == field
    assert field in refusal.message or refusal.field == "model"


@pytest.mark.parametrize("field", sorted(REFUSED_CHAT))
def test_what_is_not_offered_is_refused_with_advice(desk: Any, field: str) -> None:
    refusal = desk.refusal(CHAT, _body(**{field: 1}))
    assert refusal.field == field
    assert REFUSED_CHAT[field] in refusal.message


def test_a_misspelt_field_is_answered_with_the_nearest_one(desk: Any) -> None:
    refusal = desk.refusal(CHAT, _body(temprature=1))
    assert refusal.message == "unknown field 'temprature'; did you mean 'temperature'?"


def test_a_body_without_a_model_says_so(desk: Any) -> None:
    assert desk.refusal(CHAT, {"messages": [USER]}).message == "model is required"


def test_too_many_messages_or_tools_are_refused(desk: Any) -> None:
    limits = Limits(messages=2, tools=1)
    assert desk.refusal(CHAT, _body(messages=[USER] * 3), limits=limits).field == "messages"
    tools = [_tool("f"), _tool("g")]
    assert desk.refusal(CHAT, _body(tools=tools), limits=limits).field == "tools"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"hi"', b"null", b"\xff\xfe", b'{"model": "\\ud800"}', b"{'a': 1}",
     b'{"a": NaN', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(desk: Any, body: bytes) -> None:
    with pytest.raises(BadRequest):
        CHAT.parse(body, desk.context())


def test_a_number_that_is_none_is_named_by_its_path(desk: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": [1, float("nan")]}}}
    refusal = desk.refusal(CHAT, _body(tools=[tool]))
    assert refusal.field == "tools[0].function.parameters.a[1]"


def test_depth_is_bounded_whatever_the_field(desk: Any) -> None:
    schema: dict[str, Any] = {}
    for _ in range(60):
        schema = {"items": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert "nested deeper than 64" in desk.refusal(CHAT, _body(tools=[tool])).message
    tool["function"] = {"name": "f", "parameters": schema["items"]["items"]["items"]}
    assert desk.parse(CHAT, _body(tools=[tool])).requests
