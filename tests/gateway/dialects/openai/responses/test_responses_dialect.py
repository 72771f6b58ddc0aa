"""Responses' bodies: every field honoured, accepted for a reason, or refused by name."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from openai.types import responses as published

from bus.wire.messages.requests import ChatMessage, ChatPrompt, TextPart, ToolCall, ToolChoice
from gateway.dialects.dialect import KeptAnswer, Limits, Parsed
from gateway.dialects.openai.responses import (
    OpenAIInputTokens,
    OpenAIResponses,
    bodies,
    render_items,
)

RESPONSES = OpenAIResponses()
COUNT = OpenAIInputTokens()
BODY: dict[str, Any] = {"model": "shoal-tiny", "input": "hi"}
LOOK: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "description": "Look at a place",
    "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}},
    "strict": True,
}
SHORT = [{"type": "summary_text", "text": "short"}]
WAIT: dict[str, Any] = {"type": "function", "name": "wait", "parameters": None}


def _turns(parsed: Parsed) -> tuple[ChatMessage, ...]:
    prompt = parsed.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def _said(role: Any, *texts: str, **more: Any) -> ChatMessage:
    return ChatMessage(role=role, parts=tuple(TextPart(text=one) for one in texts), **more)


def test_a_text_is_the_users_turn_after_the_instructions(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, "instructions": "Be brief."})
    assert _turns(parsed) == (_said("system", "Be brief."), _said("user", "hi"))
    assert parsed.answer_id == "resp_req-n1-0-boot-0" and not parsed.stream
    assert _turns(desk.parse(RESPONSES, BODY)) == (_said("user", "hi"),)


def test_what_the_assistant_thought_said_and_called_in_a_row_is_one_turn(desk: Any) -> None:
    asked = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "unread"}],
            "content": [{"type": "reasoning_text", "text": "hm"}],
            "encrypted_content": None,
            "status": None,
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "b"},
            ],
        },
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":1}'},
        {"type": "function_call", "call_id": "c2", "name": "wait", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "a tree"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "done"}, {"type": "text", "text": "!"}],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]},
        {"type": "function_call", "call_id": "c3", "name": "wait", "arguments": "{}"},
        {"role": "assistant", "content": "so"},
        {"role": "assistant", "content": "then"},
    ]
    assert _turns(desk.parse(RESPONSES, {**BODY, "input": asked})) == (
        _said("system", "Be kind."),
        _said("user", "hi"),
        _said(
            "assistant",
            "a",
            "b",
            reasoning="hm",
            tool_calls=(
                ToolCall(call_id="c1", name="look", arguments='{"at":1}'),
                ToolCall(call_id="c2", name="wait", arguments="{}"),
            ),
        ),
        _said("tool", "a tree", tool_call_id="c1"),
        _said("tool", "done", "!", tool_call_id="c2"),
        _said(
            "assistant",
            reasoning="short",
            tool_calls=(ToolCall(call_id="c3", name="wait", arguments="{}"),),
        ),
        _said("assistant", "so"),
        _said("assistant", "then"),
    )


def test_every_field_that_asks_for_something_reaches_the_runner(desk: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    parsed = desk.parse(
        RESPONSES,
        {
            **BODY,
            "stream": True,
            "stream_options": {"include_obfuscation": True},
            "max_output_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.25,
            "frequency_penalty": 0.5,
            "presence_penalty": -0.5,
            "top_logprobs": 2,
            "tools": [LOOK, WAIT],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}},
            "reasoning": {"effort": "low", "summary": "auto", "max_tokens": 50},
            "safety_identifier": "me",
        },
    )
    [request] = parsed.requests
    assert parsed.stream and request.max_tokens == 9
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.25)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -0.5)
    assert request.top_logprobs == 2
    assert [one.name for one in request.prompt.tools] == ["look", "wait"]
    assert [one.strict for one in request.prompt.tools] == [True, False]
    assert request.tool_choice == ToolChoice(mode="required") and not request.parallel_tool_calls
    assert (request.output.kind, request.output.json_schema) == ("json_schema", schema)
    assert (request.thinking, request.effort, request.thinking_budget) == (None, "low", 50)
    assert request.client_id == "me"
    assert parsed.extras.for_thinking == ("reasoning.effort", "reasoning.max_tokens")


@pytest.mark.parametrize(
    ("effort", "thinking"),
    [(None, None), ("none", False), ("minimal", None), ("medium", None), ("xhigh", None)],
)
def test_effort_says_how_much_to_think(desk: Any, effort: str | None, thinking: Any) -> None:
    request = desk.parse(RESPONSES, {**BODY, "reasoning": {"effort": effort}}).requests[0]
    assert request.thinking is thinking
    assert request.effort == (None if effort == "none" else effort)


def test_a_tier_is_a_priority_and_a_verbosity_a_manner(desk: Any) -> None:
    asked = {"service_tier": "flex", "text": {"verbosity": "low"}, "prompt_cache_key": "k"}
    parsed = desk.parse(RESPONSES, {**BODY, **asked})
    assert (parsed.requests[0].priority, parsed.affinity) == (20, "k")
    assert parsed.manner == "Keep your answers short."
    whole = desk.whole(RESPONSES, parsed, desk.end(parsed))
    assert (whole["service_tier"], whole["text"]["verbosity"]) == ("flex", "low")


def test_log_probabilities_are_asked_for_by_include_too(desk: Any) -> None:
    include = ["reasoning.encrypted_content", "something.else", "message.output_text.logprobs"]
    assert desk.parse(RESPONSES, {**BODY, "include": include}).requests[0].top_logprobs == 0
    assert desk.parse(RESPONSES, {**BODY, "include": include[:2]}).requests[0].top_logprobs is None
    assert desk.parse(RESPONSES, {**BODY, "top_logprobs": 0}).requests[0].top_logprobs is None


def test_thinking_that_was_packed_for_a_client_is_read_again(desk: Any) -> None:
    parsed = desk.parse(
        RESPONSES, {**BODY, "include": ["reasoning.encrypted_content"], "store": False}
    )
    entries = [*desk.reasoning(parsed, "h\u00e9", "m"), *desk.text(parsed, "a"), *desk.end(parsed)]
    thought, said = desk.whole(RESPONSES, parsed, entries)["output"]
    packed = thought["encrypted_content"]
    for kept, wanted in (
        ({"encrypted_content": packed, "summary": []}, "h\u00e9m"),
        ({"encrypted_content": packed, "content": [], "summary": SHORT}, "h\u00e9m"),
        ({"encrypted_content": "gAAAAABo", "summary": SHORT}, "short"),
        ({"encrypted_content": packed[:-1], "summary": SHORT}, "short"),
    ):
        again = {"type": "reasoning", "id": thought["id"], **kept}
        turns = _turns(desk.parse(RESPONSES, {**BODY, "input": [again, said]}))
        assert (turns[0].reasoning, turns[0].parts[0].text) == (wanted, "a")


def test_tools_of_other_kinds_are_skipped_and_named(desk: Any) -> None:
    foreign = [
        {"type": "web_search", "user_location": {"type": "approximate"}},
        {"type": "namespace", "name": "x", "tools": [LOOK]},
        {"type": "mcp", "server_label": "x"},
    ]
    parsed = desk.parse(RESPONSES, {**BODY, "tools": [*foreign, LOOK]})
    assert [one.name for one in parsed.requests[0].prompt.tools] == ["look"]
    assert parsed.echoed_fields["tools"] == [LOOK]
    assert parsed.extras.ignored == ("tools[0]", "tools[1]", "tools[2]")
    own = {"type": "function", "name": "look"}
    some = {"type": "allowed_tools", "tools": [{"type": "mcp"}, own]}
    parsed = desk.parse(RESPONSES, {**BODY, "tools": [LOOK], "tool_choice": some})
    assert parsed.extras.ignored == ("tool_choice.tools[0]",)
    alone = desk.parse(RESPONSES, {**BODY, "tools": foreign})
    assert alone.requests[0].tool_choice == ToolChoice(mode="none")


@pytest.mark.parametrize(
    ("choice", "mode", "name", "offered"),
    [
        (None, "auto", None, ["look", "wait"]),
        ("none", "none", None, ["look", "wait"]),
        ({"type": "function", "name": "wait"}, "named", "wait", ["look", "wait"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "wait"}, {"type": "mcp", "x": 1}],
            },
            "required",
            None,
            ["wait"],
        ),
        (
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "wait"}]},
            "auto",
            None,
            ["wait"],
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "none",
                "tools": [{"type": "function", "name": "wait"}],
            },
            "none",
            None,
            ["wait"],
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]},
            "none",
            None,
            [],
        ),
    ],
)
def test_every_tool_choice_is_honoured(
    desk: Any, choice: Any, mode: Any, name: str | None, offered: list[str]
) -> None:
    [request] = desk.parse(
        RESPONSES, {**BODY, "tools": [LOOK, WAIT], "tool_choice": choice}
    ).requests
    assert request.tool_choice == ToolChoice(mode=mode, name=name)
    assert [one.name for one in request.prompt.tools] == offered


def test_a_response_says_back_what_was_done(desk: Any) -> None:
    metadata = {"a": "b"}
    parsed = desk.parse(
        RESPONSES,
        {
            **BODY,
            "instructions": "Be brief.",
            "metadata": metadata,
            "truncation": "auto",
            "service_tier": "auto",
            "tools": [WAIT],
            "tool_choice": {"type": "function", "name": "wait"},
            "text": {"format": {"type": "json_object"}, "verbosity": "medium"},
            "reasoning": {"effort": "low", "summary": "auto"},
            "max_tool_calls": 3,
            "prompt_cache_key": "k",
            "user": "u",
            "store": False,
            "top_logprobs": 3,
        },
    )
    whole = desk.whole(RESPONSES, parsed, desk.end(parsed))
    assert whole["instructions"] == "Be brief." and whole["metadata"] == metadata
    assert (whole["truncation"], whole["service_tier"]) == ("auto", "default")
    none = {"type": "function", "name": "wait", "description": None, "parameters": {}}
    assert whole["tools"] == [{**none, "strict": False}]
    assert whole["tool_choice"] == {"type": "function", "name": "wait"}
    assert whole["text"] == {"format": {"type": "json_object"}, "verbosity": "medium"}
    assert whole["reasoning"] == {"effort": "low", "summary": "auto"}
    assert (whole["max_tool_calls"], whole["prompt_cache_key"]) == (3, "k")
    assert (whole["user"], whole["store"], whole["top_logprobs"]) == ("u", False, 3)


def test_items_of_tools_that_are_not_offered_are_skipped_and_named(desk: Any) -> None:
    items = [
        {"role": "user", "content": "u"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"a": [1]}},
        {"type": "local_shell_call_output", "id": "x", "output": "o"},
        {"role": "user", "content": "v"},
    ]
    parsed = desk.parse(RESPONSES, {**BODY, "input": items})
    texts = [turn.parts[0].text for turn in parsed.requests[0].prompt.messages]
    assert texts == ["u", "v"]
    assert parsed.extras.ignored == ("input[1]", "input[2]")
    assert [json.loads(one)["type"] for one in parsed.to_keep.items] == ["message", "message"]


def test_a_call_of_a_tool_that_takes_text_is_read_as_a_call(desk: Any) -> None:
    items = [
        {"role": "user", "content": "u"},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'say "a"'},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
    ]
    parsed = desk.parse(RESPONSES, {**BODY, "input": items})
    _, called, answered = parsed.requests[0].prompt.messages
    assert json.loads(called.tool_calls[0].arguments) == {"input": 'say "a"'}
    assert (called.tool_calls[0].name, answered.tool_call_id) == ("patch", "c")
    assert answered.parts[0].text == "done"


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": 5}, "input"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": "a"}, {"id": "msg_1"}]}, "input[1]"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0]"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0]",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "video"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"background": True, "store": False}, "background"),
    ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
    ({"conversation": {"name": "x"}}, "conversation.id"),
    ({"conversation": 5}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"service_tier": "fast"}, "service_tier"),
    ({"text": {"verbosity": "lower"}}, "text.verbosity"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"reasoning": {"efort": "low"}}, "reasoning.efort"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ({"truncation": "some"}, "truncation"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "web_search"}, "tools": [LOOK]}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "x"}, "tools": [LOOK]}, "tool_choice.name"),
    (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "x"}],
            },
            "tools": [LOOK],
        },
        "tool_choice.tools[0].name",
    ),
    ({"tools": [LOOK, LOOK]}, "tools[1].name"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"name": "a"}]}, "tools[0].type"),
    ({"tools": [{**LOOK, "async": True}]}, "tools[0].async"),
    ({"model": "a b"}, "model"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"instruction": "x"}, "instruction"),
]


@pytest.mark.parametrize(("more", "field"), REFUSALS)
def test_what_cannot_be_honoured_is_refused_by_name(
    desk: Any, more: dict[str, Any], field: str
) -> None:
    refusal = desk.refusal(RESPONSES, {**BODY, **more})
    assert refusal.field == field
    assert field in refusal.message


@pytest.mark.parametrize("name", [*bodies.HARMLESS])
def test_what_changes_nothing_is_accepted(desk: Any, name: str) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, name: {"a": 1}})
    assert parsed.requests == desk.parse(RESPONSES, BODY).requests


@pytest.mark.parametrize("name", [*bodies.REFUSED])
def test_a_null_in_a_field_that_is_refused_asks_for_nothing(desk: Any, name: str) -> None:
    assert desk.parse(RESPONSES, {**BODY, name: None}).requests


def test_too_many_items_are_refused(desk: Any) -> None:
    many = [{"role": "user", "content": "a"}] * 5
    refusal = desk.refusal(RESPONSES, {**BODY, "input": many}, limits=Limits(messages=4))
    assert refusal.field == "input"


def test_the_official_clients_objects_are_accepted_back_as_they_print_themselves(
    desk: Any,
) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, "tools": [LOOK]})
    found = published.Response.model_validate_json(_answered(desk, parsed, "a").answer)
    back = [item.model_dump() for item in found.output]
    again = desk.parse(RESPONSES, {**BODY, "input": back})
    assert _turns(again)[0].tool_calls[0].name == "look"
    assert _turns(again)[0].reasoning == "hm"


# --- going on -----------------------------------------------------------------------------------


def _answered(desk: Any, parsed: Parsed, *texts: str) -> KeptAnswer:
    """The answer to `parsed`, as a process keeps it."""
    entries = [
        *desk.reasoning(parsed, "hm"),
        *desk.text(parsed, *texts),
        *desk.call(parsed, 0, "look", '{"at":1}'),
        *desk.end(parsed, "tool_calls"),
    ]
    assert parsed.to_keep is not None
    answer = RESPONSES.render_whole(parsed, desk.collect(parsed, entries))
    return KeptAnswer(answer, parsed.to_keep.items)


def test_a_response_is_gone_on_from_with_all_that_it_was_made_from(desk: Any) -> None:
    first = desk.parse(RESPONSES, {**BODY, "instructions": "Be brief.", "tools": [LOOK]})
    output = {"type": "function_call_output", "call_id": "call_0", "output": "a tree"}
    body = {
        **BODY,
        "instructions": "Be long.",
        "previous_response_id": first.answer_id,
        "input": [output],
    }
    second = desk.parse(RESPONSES, body)
    assert second.to_keep is not None and second.to_keep.previous == first.answer_id
    made = RESPONSES.continued(second, _answered(desk, first, "Hel", "lo"), Limits())
    assert _turns(made) == (
        _said("system", "Be long."),
        _said("user", "hi"),
        _said(
            "assistant",
            "Hello",
            reasoning="hm",
            tool_calls=(ToolCall(call_id="call_0", name="look", arguments='{"at":1}'),),
        ),
        _said("tool", "a tree", tool_call_id="call_0"),
    )
    third = desk.parse(RESPONSES, {**BODY, "previous_response_id": "x", "input": "and?"})
    again = RESPONSES.continued(third, _answered(desk, made, "A tree."), Limits())
    roles = [turn.role for turn in _turns(again)]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


def test_a_response_may_be_gone_on_from_without_a_word(desk: Any) -> None:
    first = desk.parse(RESPONSES, BODY)
    body = {"model": "shoal-tiny", "previous_response_id": first.answer_id}
    made = RESPONSES.continued(desk.parse(RESPONSES, body), _answered(desk, first, "a"), Limits())
    assert [turn.role for turn in _turns(made)] == ["user", "assistant"]


def test_a_conversation_that_grows_too_long_is_refused(desk: Any) -> None:
    first = desk.parse(RESPONSES, BODY)
    kept = _answered(desk, first, "a")
    body = {**BODY, "previous_response_id": first.answer_id}
    parsed = desk.parse(RESPONSES, body)
    with pytest.raises(Exception, match="too many items: the limit is 4") as caught:
        RESPONSES.continued(parsed, kept, Limits(messages=4))
    assert getattr(caught.value, "field", None) == "input"


def test_store_false_keeps_nothing(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, "store": False})
    assert parsed.to_keep is not None
    assert not parsed.to_keep.keep and parsed.to_keep.items == ()
    assert desk.parse(RESPONSES, BODY).to_keep.keep


# --- items ---------------------------------------------------------------------------------------


def _listed(kept: KeptAnswer, **query: str) -> dict[str, Any]:
    return json.loads(render_items(kept, query))


def test_the_items_of_a_response_are_told_newest_first_in_pages(desk: Any) -> None:
    asked = [
        {"role": "user", "content": "a", "id": "mine"},
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": "b"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "text", "text": "d"}]},
    ]
    parsed = desk.parse(RESPONSES, {**BODY, "input": asked})
    kept = KeptAnswer(b"{}", parsed.to_keep.items)
    told = _listed(kept)
    assert [one["type"] for one in told["data"]] == [
        "function_call_output",
        "function_call",
        "message",
        "reasoning",
        "message",
    ]
    assert not told["has_more"] and told["last_id"] == "mine"
    assert told["data"][-1] == {
        "id": "mine",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "a"}],
    }
    page = _listed(kept, order="asc", limit="2", after="mine")
    assert [one["type"] for one in page["data"]] == ["reasoning", "message"]
    assert page["has_more"] and page["last_id"] == page["data"][1]["id"]
    assert len({one["id"] for one in told["data"]}) == 5
    assert _listed(dataclasses.replace(kept, items=()))["first_id"] is None


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"limit": "²"}, {"order": "up"}]
)
def test_a_page_that_cannot_be_told_is_refused_by_name(query: dict[str, str]) -> None:
    with pytest.raises(Exception, match=next(iter(query))) as caught:
        _listed(KeptAnswer(b"{}", ()), **query)
    assert getattr(caught.value, "field", None) == next(iter(query))


def test_a_page_after_an_item_that_is_not_there_is_refused() -> None:
    with pytest.raises(Exception, match="the list has no object with the id 'x'"):
        _listed(KeptAnswer(b"{}", ()), after="x")


def test_what_a_tool_answered_that_is_no_text_is_told_in_words_and_named(desk: Any) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "high"}
    output = [{"type": "input_text", "text": "see"}, image]
    asked = [{"role": "user", "content": "a"}]
    asked.append({"type": "function_call_output", "call_id": "c", "output": output})
    parsed = desk.parse(RESPONSES, {**BODY, "input": asked})
    told = _turns(parsed)[-1]
    assert [part.text for part in told.parts] == [
        "see",
        "[image left out: only text can be read here]",
    ]
    assert parsed.extras.ignored == ("input[1].output[1]",)
    strict = {"limits": Limits(strict_fields=True)}
    assert desk.refusal(RESPONSES, {**BODY, "input": asked}, **strict).field == "input[1].output[1]"


# --- counting -----------------------------------------------------------------------------------


def test_a_count_asks_about_the_prompt_that_the_response_would_have(desk: Any) -> None:
    body = {**BODY, "instructions": "Be brief.", "tools": [LOOK], "reasoning": {"effort": "low"}}
    [counted], [asked] = (desk.parse(one, body).requests for one in (COUNT, RESPONSES))
    assert counted.question is not None and counted.question.wants == "count"
    same = ("prompt", "tool_choice", "output", "thinking", "effort")
    assert all(getattr(counted, name) == getattr(asked, name) for name in same)
    parsed = desk.parse(COUNT, body)
    assert parsed.to_keep is not None and not parsed.to_keep.keep
    tokens = desk.usage.prompt_tokens
    assert desk.whole(COUNT, parsed, desk.end(parsed)) == {
        "object": "response.input_tokens",
        "input_tokens": tokens,
    }


def test_a_count_goes_on_from_a_kept_answer(desk: Any) -> None:
    kept = _answered(desk, desk.parse(RESPONSES, {**BODY, "tools": [LOOK]}), "a")
    body = {"model": "m", "previous_response_id": "resp_x", "input": "and?"}
    made = [one.continued(desk.parse(one, body), kept, Limits(), {}) for one in (COUNT, RESPONSES)]
    assert _turns(made[0]) == _turns(made[1]) and len(_turns(made[0])) == 3


@pytest.mark.parametrize("name", bodies.HARMLESS_COUNT)
def test_what_says_nothing_of_the_prompt_changes_no_count(desk: Any, name: str) -> None:
    assert desk.parse(COUNT, {**BODY, name: 7}).requests == desk.parse(COUNT, BODY).requests
