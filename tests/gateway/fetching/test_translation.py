"""Requests and answers between dialects: what survives the way to a provider and back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus import translation
from bus.models.tasks import Provider, ProviderModel
from bus.translation import events_in, hearing_of
from bus.translation.asking import OUR_FIELDS
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    OutputFormat,
    TextPart,
    ToolCall,
    Usage,
)
from gateway.dialects.collect import CollectedChoice, Collector
from gateway.dialects.faults import HttpFaultRaised
from gateway.fetching.providers import ProviderFailed, provider_body, stream_faults, target_of

REQUEST = RequestId("req-n-h0-b-1")
OPENAI = ProviderModel("cloud", "m", Provider(kind="openai", base_url="https://api.openai.com/v1"))
CLAUDE = ProviderModel("claude", "m", Provider(kind="anthropic", base_url="https://a.example.org"))
REGEX = OutputFormat(kind="regex", rule="a", field="guided_regex")
NOT_FOR_PROVIDERS = {
    "request_id": "providers make their own",
    "model": "the task table names the provider's model",
    "prompt_logprobs": "of raw prompts alone, which providers refuse",
    "priority": "for the queues of this cluster",
    "client_id": "for the queues of this cluster",
    "key_id": "for the prefix cache of a runner",
    "question": "answered by runners alone",
    "template": "of earlier builds",
    "adapter": "part of the name of a model of this cluster",
    "trace": "for runners",
    "prediction": "a hint that changes no answer, and that some models of providers refuse",
}
texts = st.text(min_size=1, max_size=12)
arguments = st.dictionaries(texts, st.one_of(st.integers(), texts, st.none()), max_size=3)
Piece = tuple[str, Any]
pieces = st.lists(
    st.one_of(
        st.tuples(st.just("text"), texts),
        st.tuples(st.just("reasoning"), texts),
        st.tuples(st.just("call"), arguments),
    ),
    max_size=8,
)


def request_of(*turns: ChatMessage, **more: Any) -> GenerationRequest:
    prompt = ChatPrompt(messages=turns)
    return GenerationRequest(request_id=REQUEST, model=ModelId("m"), prompt=prompt, **more)


def turn(role: Any, text: str = "", **more: Any) -> ChatMessage:
    return ChatMessage(role=role, parts=(TextPart(text=text),) if text else (), **more)


def cut(text: str) -> list[str]:
    return [text[start : start + 5] for start in range(0, len(text), 5)]


def openai_events(said: Sequence[Piece]) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    calls = 0
    for kind, value in said:
        if kind != "call":
            name = "content" if kind == "text" else "reasoning_content"
            deltas += [{name: one} for one in cut(value)]
            continue
        function: dict[str, str] = {"name": "f", "arguments": ""}
        deltas.append({"tool_calls": [{"index": calls, "id": f"c{calls}", "function": function}]})
        for one in cut(json.dumps(value)):
            deltas.append({"tool_calls": [{"index": calls, "function": {"arguments": one}}]})
        calls += 1
    events = [{"choices": [{"index": 0, "delta": one}]} for one in deltas]
    return [*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]


def anthropic_events(said: Sequence[Piece]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {}}]
    kinds = {"text": ("text", "text"), "reasoning": ("thinking", "thinking")}
    for index, (kind, value) in enumerate(said):
        if kind == "call":
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": f"c{index}",
                "name": "f",
                "input": {},
            }
            written = json.dumps(value)
            deltas = [{"type": "input_json_delta", "partial_json": one} for one in cut(written)]
        else:
            block_type, name = kinds[kind]
            block = {"type": block_type, name: ""}
            deltas = [{"type": f"{name}_delta", name: one} for one in cut(value)]
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        events.append({"type": "content_block_stop", "index": index})
    return [*events, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}]


def heard(asked: ProviderModel, events: Sequence[dict[str, Any]]) -> CollectedChoice:
    target = target_of(asked)
    hearing = hearing_of(target, REQUEST)
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    collector = Collector([request_of(turn("user", "x"))])
    for event in events_in(lines, target.name):
        collector.add(hearing.take(event))
    collector.add(hearing.end(Usage()))
    assert collector.ended
    return collector.collected[0].choices[0]


@settings(max_examples=25)
@given(pieces)
def test_text_thinking_and_calls_survive_the_way_back(said: list[Piece]) -> None:
    for asked, events in ((OPENAI, openai_events(said)), (CLAUDE, anthropic_events(said))):
        choice = heard(asked, events)
        for channel, found in (("text", choice.text), ("reasoning", choice.reasoning)):
            assert found == "".join(value for kind, value in said if kind == channel)
        called = [value for kind, value in said if kind == "call"]
        assert [json.loads(call.arguments) for call in choice.calls] == called
        assert len({call.call_id for call in choice.calls}) == len(called)
        assert choice.finish_reason == ("tool_calls" if called else "stop")


@settings(max_examples=25)
@given(texts, texts, st.lists(arguments, min_size=1, max_size=3), texts)
def test_a_conversation_survives_the_way_there(
    system: str, said: str, called: list[dict[str, Any]], answered: str
) -> None:
    calls = tuple(
        ToolCall(call_id=f"call/{number}", name="f", arguments=json.dumps(value))
        for number, value in enumerate(called)
    )
    answers = [turn("tool", answered, tool_call_id=call.call_id) for call in calls]
    turns = (turn("system", system), turn("user", said), turn("assistant", tool_calls=calls))
    request = request_of(*turns, *answers)
    openai = provider_body(OPENAI, request).fields["messages"]
    assert [one["content"] for one in openai[:2]] == [system, said]
    told = [json.loads(one["function"]["arguments"]) for one in openai[2]["tool_calls"]]
    assert told == called and [one["content"] for one in openai[3:]] == [answered] * len(calls)
    body = provider_body(CLAUDE, request).fields
    user, assistant, results = body["messages"]
    assert body["system"] == system and user["content"] == [{"type": "text", "text": said}]
    assert [one["input"] for one in assistant["content"]] == called
    ids = [one["id"] for one in assistant["content"]]
    assert ids == [one["tool_use_id"] for one in results["content"]] and "/" not in "".join(ids)


def test_openai_s_own_server_has_the_newer_name_of_the_bound() -> None:
    request = request_of(turn("user", "x"), max_tokens=9)
    assert provider_body(OPENAI, request).fields["max_completion_tokens"] == 9
    near = Provider(kind="openai", base_url="http://127.0.0.1:1/v1")
    assert provider_body(ProviderModel("near", "m", near), request).fields["max_tokens"] == 9


@pytest.mark.parametrize(
    ("asked", "more", "told"),
    [
        (OPENAI, {"effort": "max"}, {"reasoning_effort": "xhigh"}),
        (CLAUDE, {"thinking": False}, {"thinking": {"type": "disabled"}}),
        (CLAUDE, {"thinking_budget": 5000, "max_tokens": 100}, {"max_tokens": 5100}),
        (CLAUDE, {"effort": "low"}, {"output_config": {"effort": "low"}}),
        (CLAUDE, {"stop": ("a",)}, {"stop_sequences": ["a"], "max_tokens": 4096}),
        (
            OPENAI,
            {"output": OutputFormat(kind="json_schema", json_schema={"type": "object"})},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"type": "object"}},
                }
            },
        ),
    ],
)
def test_settings_go_by_the_provider_s_names(
    asked: ProviderModel, more: dict[str, Any], told: dict[str, Any]
) -> None:
    fields = provider_body(asked, request_of(turn("user", "x"), **more)).fields
    assert told.items() <= fields.items()


@pytest.mark.parametrize(
    ("asked", "request_", "field"),
    [
        (CLAUDE, request_of(turn("user", "x"), turn("assistant", "y")), "messages"),
        (CLAUDE, request_of(turn("user", "x"), turn("tool", "y")), "messages"),
        (OPENAI, request_of(turn("user", "x"), turn("tool", "y")), "messages"),
        (
            OPENAI,
            request_of(turn("user", "x"), output=REGEX),
            "guided_regex",
        ),
        (OPENAI, request_of(turn("user", "x"), history=(1, 2)), "history"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_refused_by_its_field(
    asked: ProviderModel, request_: GenerationRequest, field: str
) -> None:
    with pytest.raises(HttpFaultRaised) as raised:
        provider_body(asked, request_)
    assert (raised.value.fault.status, raised.value.fault.field) == (400, field)


def test_earlier_thinking_is_left_out_and_named() -> None:
    request = request_of(
        turn("user", "x"), turn("assistant", "y", reasoning="z"), turn("user", "w")
    )
    for asked in (OPENAI, CLAUDE):
        body = provider_body(asked, request)
        assert body.unheeded == ("messages.reasoning",) and '"z"' not in json.dumps(body.fields)


def test_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    calls = [{"id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(2)]
    events = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]} for call in calls]
    assert [call.call_id for call in heard(OPENAI, events).calls] == ["c0", "c1"]


@pytest.mark.parametrize("data", ["{", "[]", "3"])
def test_an_event_that_is_no_object_is_a_broken_answer(data: str) -> None:
    with pytest.raises(ProviderFailed, match="not a JSON object"), stream_faults():
        list(events_in(f"data: {data}\n\n".encode(), "the provider 'cloud'"))


def test_every_field_of_a_request_is_translated_or_reported_as_ignored() -> None:
    assert translation.__file__ is not None
    files = Path(translation.__file__).parent.glob("*.py")
    source = "\n".join(file.read_text() for file in files)
    translated_fields = set(re.findall(r"\brequest\.(\w+)", source))
    accounted = {*translated_fields, *OUR_FIELDS, *NOT_FOR_PROVIDERS}
    assert set(GenerationRequest.model_fields) - accounted == set()
