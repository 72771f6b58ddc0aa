from __future__ import annotations

import json
from typing import Any

import pytest

from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    ImagePart,
    OutputFormat,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from gateway.dialects.body import EXTRAS
from gateway.dialects.openai.bodies import HARMLESS, ChatCompletionsBody
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.registry import request_id_of
from tests.harness.text_forms import FORM_FIELDS

CHAT = OpenAIChat()
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def _tool(name: str) -> dict[str, Any]:
    function = {"name": name, "description": "does", "parameters": SCHEMA, "strict": True}
    return {"type": "function", "function": function}


def _body(**more: Any) -> dict[str, Any]:
    return {"model": "shoal-tiny", "messages": [USER], **more}


def _request(desk: Any, **more: Any) -> Any:
    return desk.parse(CHAT, _body(**more)).requests[0]


HONOURED: list[tuple[str, dict[str, Any], str, Any]] = [
    ("model", {}, "model", "shoal-tiny"),
    ("n", {"n": 3}, "n", 3),
    ("max_tokens", {"max_tokens": 5}, "max_tokens", 5),
    ("max_completion_tokens", {"max_completion_tokens": 6}, "max_tokens", 6),
    ("neither", {}, "max_tokens", None),
    ("equal limits", {"max_tokens": 7, "max_completion_tokens": 7}, "max_tokens", 7),
    ("stop text", {"stop": "END"}, "stop", ("END",)),
    ("stop list", {"stop": ["a", "b", "a"]}, "stop", ("a", "b")),
    ("stop null", {"stop": None}, "stop", ()),
    ("prediction", {"prediction": {"type": "content", "content": "so"}}, "prediction", "so"),
    (
        "prediction in parts",
        {"prediction": {"type": "content", "content": [{"type": "text", "text": "a"}] * 2}},
        "prediction",
        "aa",
    ),
    ("seed", {"seed": 2**63}, "sampling.seed", 2**63),
    ("temperature", {"temperature": 0}, "sampling.temperature", 0.0),
    ("temperature default", {"temperature": None}, "sampling.temperature", 1.0),
    ("top_p", {"top_p": 0.25}, "sampling.top_p", 0.25),
    ("top_p zero", {"top_p": 0}, "sampling.top_p", 1e-9),
    ("top_k", {"top_k": 40}, "sampling.top_k", 40),
    ("top_k off", {"top_k": -1}, "sampling.top_k", 0),
    ("min_p", {"min_p": 0.125}, "sampling.min_p", 0.125),
    ("frequency", {"frequency_penalty": -1.5}, "sampling.frequency_penalty", -1.5),
    ("presence", {"presence_penalty": 1.5}, "sampling.presence_penalty", 1.5),
    ("repetition", {"repetition_penalty": 1.25}, "sampling.repetition_penalty", 1.25),
    ("logit_bias", {"logit_bias": {"5": -100, "77": 2}}, "sampling.logit_bias", {5: -100, 77: 2}),
    ("logprobs", {"logprobs": True}, "top_logprobs", 0),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 20}, "top_logprobs", 20),
    ("no logprobs", {"logprobs": False, "top_logprobs": 0}, "top_logprobs", None),
    ("ignore_eos", {"ignore_eos": True}, "ignore_eos", True),
    ("min_tokens", {"min_tokens": 7}, "min_tokens", 7),
    ("min_tokens 0", {"min_tokens": 0}, "min_tokens", None),
    ("effort none", {"reasoning_effort": "none"}, "thinking", False),
    ("effort minimal", {"reasoning_effort": "minimal"}, "effort", "minimal"),
    ("effort low", {"reasoning_effort": "low"}, "effort", "low"),
    ("effort high", {"reasoning_effort": "high"}, "effort", "high"),
    ("effort alone", {"reasoning_effort": "high"}, "thinking", None),
    ("router's effort", {"reasoning": {"effort": "low"}}, "effort", "low"),
    ("template's effort", {"chat_template_kwargs": {"reasoning_effort": "low"}}, "effort", "low"),
    ("effort thrice", {"reasoning_effort": "low", "reasoning": {"effort": "low"},
     "chat_template_kwargs": {"reasoning_effort": "low"}}, "effort", "low"),
    ("router's none", {"reasoning": {"effort": "none"}}, "thinking", False),
    ("router's switch", {"reasoning": {"enabled": True}}, "thinking", True),
    ("switch and effort", {"enable_thinking": True, "reasoning_effort": "max"}, "effort", "max"),
    ("off and minimal", {"enable_thinking": False, "reasoning_effort": "minimal"}, "thinking",
     False),
    ("on by type", {"thinking": {"type": "enabled"}}, "thinking", True),
    ("off by type", {"thinking": {"type": "disabled"}}, "thinking", False),
    ("adaptive", {"thinking": {"type": "adaptive"}}, "thinking", None),
    ("budget", {"thinking_budget": 9}, "thinking_budget", 9),
    ("no budget", {"thinking_budget": -1}, "thinking_budget", None),
    ("budget 0", {"thinking_budget": 0}, "thinking_budget", 0),
    ("llama.cpp's budget", {"thinking_budget_tokens": 9}, "thinking_budget", 9),
    ("vllm's budget", {"thinking_token_budget": 9}, "thinking_budget", 9),
    ("router's budget", {"reasoning": {"max_tokens": 9}}, "thinking_budget", 9),
    ("anthropic's budget", {"thinking": {"type": "enabled", "budget_tokens": 9}},
     "thinking_budget", 9),
    ("template's thinking", {"chat_template_kwargs": {"thinking": True}}, "thinking", True),
    ("variables", {"chat_template_kwargs": {"enable_thinking": True, "style": "terse", "n": 1,
     "x": None}}, "variables", {"style": "terse", "n": 1}),
    ("no variables", {"chat_template_kwargs": {"enable_thinking": True}}, "variables", None),
    ("no effort", {}, "thinking", None),
    ("template", {"chat_template_kwargs": {"enable_thinking": False}}, "thinking", False),
    ("format text", {"response_format": {"type": "text"}}, "output", OutputFormat()),
    ("json_object", {"response_format": {"type": "json_object"}}, "output.kind", "json_object"),
    (
        "json_schema",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        "output",
        OutputFormat(kind="json_schema", json_schema=SCHEMA),
    ),
    ("no tools", {}, "tool_choice.mode", "none"),
    ("tools", {"tools": [_tool("f")]}, "tool_choice.mode", "auto"),
    ("choice none", {"tools": [_tool("f")], "tool_choice": "none"}, "tool_choice.mode", "none"),
    ("choice auto", {"tools": [_tool("f")], "tool_choice": "auto"}, "tool_choice.mode", "auto"),
    ("must", {"tools": [_tool("f")], "tool_choice": "required"}, "tool_choice.mode", "required"),
    (
        "named",
        {"tools": [_tool("f")], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice",
        ToolChoice(mode="named", name="f"),
    ),
    ("one call at a time", {"parallel_tool_calls": False}, "parallel_tool_calls", False),
    ("calls together", {"parallel_tool_calls": None}, "parallel_tool_calls", True),
    ("user", {"user": "u1"}, "client_id", "u1"),
    ("safety_identifier", {"safety_identifier": "u2"}, "client_id", "u2"),
    ("x_client_id", {"user": "u1", "x_client_id": "c1"}, "client_id", "c1"),
    ("x_priority", {"x_priority": "urgent"}, "priority", 1),
    ("x_priority number", {"x_priority": 42}, "priority", 42),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "path", "wanted"), [row[1:] for row in HONOURED], ids=[row[0] for row in HONOURED]
)
def test_a_field_is_honoured(desk: Any, sent: dict[str, Any], path: str, wanted: Any) -> None:
    found = _request(desk, **sent)
    for step in path.split("."):
        found = getattr(found, step)
    assert found == wanted


def test_tools_reach_the_prompt_with_their_schemas(desk: Any) -> None:
    request = _request(desk, tools=[_tool("f"), _tool("g")])
    assert request.prompt.tools == (
        ToolSpec(name="f", description="does", parameters=SCHEMA, strict=True),
        ToolSpec(name="g", description="does", parameters=SCHEMA, strict=True),
    )


def test_allowed_tools_offers_only_those(desk: Any) -> None:
    allowed = {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "g"}}],
    }
    request = _request(
        desk,
        tools=[_tool("f"), _tool("g")],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
    )
    assert [tool.name for tool in request.prompt.tools] == ["g"]
    assert request.tool_choice.mode == "required"


def test_tools_of_other_kinds_are_skipped_and_named(desk: Any) -> None:
    custom = {"type": "mcp", "custom": {"name": "run", "format": {"type": "text"}}}
    parsed = desk.parse(CHAT, _body(tools=[custom, _tool("f"), {"type": "web_search"}]))
    assert parsed.extras.ignored == ("tools[0]", "tools[2]")
    (request,) = parsed.requests
    assert [tool.name for tool in request.prompt.tools] == ["f"]
    assert request.tool_choice.mode == "auto"
    alone = _request(desk, tools=[custom])
    assert (alone.prompt.tools, alone.tool_choice.mode) == ((), "none")
    refusal = desk.refusal(CHAT, _body(tools=[custom], tool_choice="required"))
    assert refusal.field == "tool_choice"


def test_a_tool_that_takes_text_is_offered_as_a_function_with_one_text(desk: Any) -> None:
    rule = {"syntax": "lark", "definition": 'start: "a"'}
    custom = {"name": "run", "description": "Runs.", "format": {"type": "grammar", "grammar": rule}}
    body = _body(tools=[_tool("f"), {"type": "custom", "custom": custom}])
    parsed = desk.parse(CHAT, body)
    assert parsed.extras.ignored == ("tools[1].custom.format",)
    tool = parsed.requests[0].prompt.tools[1]
    assert (tool.name, tool.parameters["required"], tool.strict) == ("run", ["input"], True)
    assert tool.description == 'Runs.\n\nThe input is text of this Lark grammar:\nstart: "a"'
    named = {"type": "custom", "custom": {"name": "run"}}
    chosen = _request(desk, tools=body["tools"], tool_choice=named)
    assert (chosen.tool_choice.mode, chosen.tool_choice.name) == ("named", "run")
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    (only,) = _request(desk, tools=body["tools"], tool_choice=allowed).prompt.tools
    assert only.name == "run"
    unknown = {"type": "custom", "custom": {"name": "walk"}}
    refusal = desk.refusal(CHAT, {**body, "tool_choice": unknown})
    assert refusal.field == "tool_choice.custom.name"


def test_an_earlier_call_of_a_tool_that_takes_text_is_a_call(desk: Any) -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "run", "input": 'say("hi")'}}
    said = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    answered = [*said, {"role": "tool", "tool_call_id": "c", "content": "hi"}]
    turn = _request(desk, messages=answered).prompt.messages[1]
    made = ToolCall(call_id="c", name="run", arguments=json.dumps({"input": 'say("hi")'},
                    separators=(",", ":")))  # fmt: skip
    assert turn.tool_calls == (made,)
    unnamed = {**call, "custom": {"input": "x"}}
    refusal = desk.refusal(
        CHAT, _body(messages=[USER, {"role": "assistant", "tool_calls": [unnamed]}])
    )
    assert refusal.field == "messages[1].tool_calls[0].custom.name"


def test_stream_and_usage_are_asked_for(desk: Any) -> None:
    parsed = desk.parse(CHAT, _body(stream=True, stream_options={"include_usage": True}))
    assert (parsed.stream, parsed.include_usage) == (True, True)
    parsed = desk.parse(CHAT, _body(stream=True))
    assert (parsed.stream, parsed.include_usage) == (True, False)
    assert not desk.parse(CHAT, _body()).stream


def test_every_role_is_understood(desk: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}, "index": 0}
    messages = [
        {"role": "system", "content": "s", "name": "boss"},
        {"role": "developer", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "content": [
            {"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,", "detail": "low"}},
        ]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": [{"type": "text", "text": "42"}], "tool_call_id": "c1"},
        {"role": "assistant", "content": "it is 42", "reasoning_content": "hm", "tool_calls": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "annotations": []},
    ]  # fmt: skip
    assert _request(desk, messages=messages).prompt == ChatPrompt(
        messages=(
            ChatMessage(role="system", parts=(TextPart(text="s"),), name="boss"),
            ChatMessage(role="system", parts=(TextPart(text="d"),)),
            ChatMessage(
                role="user",
                parts=(
                    TextPart(text="look"),
                    ImagePart(url="data:image/png;base64,", detail="low"),
                ),
            ),
            ChatMessage(
                role="assistant",
                tool_calls=(ToolCall(call_id="c1", name="f", arguments="{}"),),
            ),
            ChatMessage(role="tool", parts=(TextPart(text="42"),), tool_call_id="c1"),
            ChatMessage(role="assistant", parts=(TextPart(text="it is 42"),), reasoning="hm"),
            ChatMessage(role="assistant", parts=(TextPart(text="no"),)),
        )
    )


def test_the_official_clients_own_message_may_be_sent_back(desk: Any) -> None:
    from openai.types.chat import ChatCompletionMessage

    message = ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        }
    )
    request = _request(desk, messages=[USER, message.model_dump()])
    assert request.prompt.messages[1].tool_calls[0].call_id == "c"


def test_the_last_assistant_turn_can_be_continued(desk: Any) -> None:
    started = [USER, {"role": "assistant", "content": "It is"}]
    assert _request(desk, messages=started, continue_final_message=True).prompt.continue_final
    assert not _request(desk, messages=started).prompt.continue_final


def test_extras_are_read_and_unknown_x_fields_stripped(desk: Any) -> None:
    body = _body(x_stay_warm=60, x_timeout_s=30, x_colour="red", x_priority="low", x_trace=None)
    extras = desk.parse(CHAT, body).extras
    assert (extras.stay_warm_s, extras.timeout_s, extras.priority) == (60.0, 30.0, 20)
    assert not extras.trace
    assert desk.parse(CHAT, _body(x_trace=True)).extras.trace


@pytest.mark.parametrize(
    ("word", "number"), [("urgent", 1), ("high", 5), ("normal", 10), ("low", 20), ("batch", 50)]
)
def test_priorities_have_names(desk: Any, word: str, number: int) -> None:
    assert _request(desk, x_priority=word).priority == number


@pytest.mark.parametrize("field", sorted(HARMLESS))
def test_harmless_fields_change_nothing(desk: Any, field: str) -> None:
    assert _request(desk, **{field: {"any": "thing"}}) == _request(desk)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", False),
        ("service_tier", "auto"),
        ("service_tier", "default"),
        ("modalities", ["text"]),
        ("verbosity", "medium"),
        ("tools", []),
        ("functions", None),
        ("logit_bias", {}),
        ("tool_choice", "auto"),
    ],
)
def test_a_field_that_asks_for_what_happens_anyway_is_accepted(
    desk: Any, field: str, value: Any
) -> None:
    assert _request(desk, **{field: value}) == _request(desk)


@pytest.mark.parametrize(
    ("verbosity", "manner"),
    [("low", "Keep your answers short."), ("medium", ""), ("high", "Answer at length, in detail.")],
)
def test_a_verbosity_is_a_sentence_of_the_system_prompt(
    desk: Any, verbosity: str, manner: str
) -> None:
    assert desk.parse(CHAT, _body(verbosity=verbosity)).manner == manner


@pytest.mark.parametrize(
    ("tier", "asked", "priority"),
    [("flex", {}, 20), ("priority", {}, 5), ("flex", {"x_priority": "urgent"}, 1)],
)
def test_a_service_tier_is_a_priority_and_said_back(
    desk: Any, tier: str, asked: dict[str, Any], priority: int
) -> None:
    parsed = desk.parse(CHAT, _body(service_tier=tier, **asked))
    assert parsed.requests[0].priority == priority
    entries = [*desk.text(parsed, "a"), *desk.end(parsed)]
    assert desk.whole(CHAT, parsed, entries)["service_tier"] == tier
    chunks = [one for one in desk.play(CHAT, parsed, entries).decode().split("\n\n") if "{" in one]
    assert all(json.loads(one[6:])["service_tier"] == tier for one in chunks)


@pytest.mark.parametrize("tier", ["auto", "default", "scale"])
def test_the_other_tiers_are_the_default(desk: Any, tier: str) -> None:
    parsed = desk.parse(CHAT, _body(service_tier=tier))
    assert parsed.requests == desk.parse(CHAT, _body()).requests
    assert parsed.echoed_fields == {"service_tier": "default"}


@pytest.mark.parametrize(
    ("said", "choice"),
    [
        ({}, ToolChoice(mode="auto")),
        ({"function_call": "auto"}, ToolChoice(mode="auto")),
        ({"function_call": "none"}, ToolChoice(mode="none")),
        ({"function_call": {"name": "g"}}, ToolChoice(mode="named", name="g")),
    ],
)
def test_functions_are_tools_of_which_one_is_called_at_most(
    desk: Any, said: dict[str, Any], choice: ToolChoice
) -> None:
    functions = [_tool(name)["function"] for name in "fg"]
    request = _request(desk, functions=functions, **said)
    tools = _request(desk, tools=[_tool("f"), _tool("g")])
    assert request.prompt == tools.prompt and request.tool_choice == choice
    assert not request.parallel_tool_calls


def test_calls_in_the_older_form_are_answered_by_their_order(desk: Any) -> None:
    call = {"name": "f", "arguments": '{"a":1}'}
    turns = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "one"},
        {"role": "assistant", "content": "so", "function_call": {**call, "arguments": ""}},
        {"role": "function", "name": "f", "content": None},
    ]
    _, first, one, second, two = _request(desk, messages=turns).prompt.messages
    assert (first.tool_calls[0].name, first.tool_calls[0].arguments) == ("f", '{"a":1}')
    assert second.tool_calls[0].arguments == "{}" and second.parts[0].text == "so"
    assert (one.role, one.parts[0].text, two.parts[0].text) == ("tool", "one", "")
    assert one.tool_call_id == first.tool_calls[0].call_id
    assert two.tool_call_id == second.tool_calls[0].call_id != one.tool_call_id


def test_labels_without_store_are_nothing(desk: Any) -> None:
    for said in ({"any": {"thing": 1}}, "words"):
        assert _request(desk, metadata=said) == _request(desk)
        assert desk.parse(CHAT, _body(metadata=said)).to_keep is None


def test_a_cache_key_says_which_requests_belong_together(desk: Any) -> None:
    assert desk.parse(CHAT, _body(prompt_cache_key="k")).affinity == "k"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_as_many_tokens_as_fit_may_be_asked_for(desk: Any, field: str) -> None:
    assert _request(desk, **{field: -1}) == _request(desk)


def test_nulls_mean_left_out(desk: Any) -> None:
    nulls = dict.fromkeys(set(ChatCompletionsBody.model_fields) - {"model", "messages"})
    assert _request(desk, **nulls) == _request(desk)


def test_the_answers_id_names_the_request(desk: Any) -> None:
    parsed = desk.parse(CHAT, _body())
    assert parsed.answer_id == "chatcmpl-req-n1-0-boot-0"
    assert request_id_of(parsed.answer_id) == parsed.requests[0].request_id
    assert request_id_of("req-n1-0-boot-0") == parsed.requests[0].request_id


def test_every_field_of_the_body_is_sent_by_a_test_above() -> None:
    """A field that no table sends is one that could be parsed and ignored."""
    sent = {name for _, body, _, _ in HONOURED for name in body}
    sent |= {"messages", "model", "stream", "stream_options", "continue_final_message"}
    sent |= {"functions", "function_call", "metadata"}
    sent |= FORM_FIELDS | {"store", "service_tier", "modalities", "verbosity", "prompt_cache_key"}
    assert set(ChatCompletionsBody.model_fields) == sent - EXTRAS.keys()
