"""Tools that take text: offered as functions, their calls told back with the text alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types import responses as published
from openai.types.chat import ChatCompletion
from pydantic import TypeAdapter

from gateway.dialects.dialect import KeptAnswer
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.custom_tools import InputText, input_of
from gateway.dialects.openai.responses import OpenAIResponses, replayed
from tests.harness.sse_frames import FrameReader

CHAT, RESPONSES = OpenAIChat(), OpenAIResponses()
EVENT: TypeAdapter[Any] = TypeAdapter(published.ResponseStreamEvent)
LARK = 'start: "*** Begin Patch" /(.|\\n)+/'
PATCH = (
    '*** Begin Patch\n*** Update File: a.py\n-"one"\n+\t"zwei \u00fc \U0001f41f"\n*** End Patch\n'
)
"""What Codex's `apply_patch` takes."""
FORMAT = {"type": "grammar", "syntax": "lark", "definition": LARK}
APPLY_PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": FORMAT}
SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
RESPONSE = {"model": "m", "input": "mend it", "tools": [SHELL, APPLY_PATCH], "stream": True}
CHAT_FORMAT = {"type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}}
CHAT_BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "mend it"}],
    "tools": [{"type": "custom", "custom": {"name": "apply_patch", "format": CHAT_FORMAT}}],
    "stream": True,
}


def written(text: str, *, ascii: bool = True, every: int = 5) -> list[str]:
    """Arguments as a model writes them, in pieces."""
    whole = json.dumps({"input": text}, ensure_ascii=ascii)
    return [whole[start : start + every] for start in range(0, len(whole), every)]


def events_of(stream: bytes) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for number, frame in enumerate(FrameReader().feed(stream)):
        event = json.loads(frame.data)
        assert (frame.event, event["sequence_number"]) == (event["type"], number)
        EVENT.validate_python(event)
        made.append(event)
    return made


@given(st.text(), st.booleans(), st.integers(1, 7))
@example(PATCH, True, 1)
@example('\\u005c"\U0001f41f', True, 1)
def test_the_text_is_the_same_however_the_arguments_come(
    text: str, ascii: bool, every: int
) -> None:
    said = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    reader = InputText()
    pieces = [reader.add(piece) for piece in written(text, ascii=ascii, every=every)]
    assert "".join(pieces) + reader.end() == said == input_of(json.dumps({"input": text}))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", ""),
        ("{}", ""),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ("plain", "plain"),
        ('{"input": "cut o', "cut o"),
        ('{"input": "cut \\u00', "cut "),
        ('{"input": "\\ud83d x', "\ufffd x"),
    ],
)
def test_arguments_of_another_form_are_not_lost(arguments: str, text: str) -> None:
    assert input_of(arguments) == text


@pytest.mark.parametrize("batch", [1, 100])
def test_a_response_tells_a_call_of_a_custom_tool_as_codex_reads_it(desk: Any, batch: int) -> None:
    parsed = desk.parse(RESPONSES, RESPONSE)
    assert parsed.extras.ignored == ("tools[1].format",), "the grammar holds nothing"
    entries = [
        *desk.text(parsed, "So: "),
        *desk.call(parsed, 0, "shell", '{"a":', "1}"),
        *desk.call(parsed, 1, "apply_patch", *written(PATCH)),
        *desk.end(parsed, "tool_calls"),
    ]
    events = events_of(desk.play(RESPONSES, parsed, entries, batch=batch))
    told = [one for one in events if "custom_tool_call_input" in one["type"]]
    assert "".join(one["delta"] for one in told[:-1]) == PATCH
    assert {one["type"] for one in told[:-1]} == {"response.custom_tool_call_input.delta"}
    assert told[-1]["type"] == "response.custom_tool_call_input.done"
    item = events[-1]["response"]["output"][-1]
    assert told[-1]["input"] == item["input"] == PATCH
    assert (item["type"], item["name"], item["status"]) == (
        "custom_tool_call", "apply_patch", "completed",
    )  # fmt: skip
    added = next(one for one in events if one.get("item", {}).get("id") == item["id"])
    assert added["type"] == "response.output_item.added" and added["item"]["input"] == ""
    assert [one["type"] for one in events[-1]["response"]["output"]] == [
        "message", "function_call", "custom_tool_call",
    ]  # fmt: skip
    whole = desk.whole(RESPONSES, desk.parse(RESPONSES, {**RESPONSE, "stream": False}), entries)
    assert whole["output"] == events[-1]["response"]["output"]
    assert whole["tools"][1] == APPLY_PATCH
    again = events_of(replayed(KeptAnswer(json.dumps(whole).encode(), ()), {}))
    assert again[-1]["response"] == whole and told[-1]["type"] in {one["type"] for one in again}


def test_a_call_of_a_custom_tool_that_was_cut_is_incomplete(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, RESPONSE)
    call = desk.call(parsed, 0, "apply_patch", '{"input": "*** Beg')
    events = events_of(desk.play(RESPONSES, parsed, [*call, *desk.end(parsed, "length")]))
    (item,) = events[-1]["response"]["output"]
    assert (item["input"], item["status"]) == ("*** Beg", "incomplete")


def test_a_call_and_its_answer_come_back_as_history(desk: Any) -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": PATCH}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    items = [{"role": "user", "content": "mend it"}, call, output]
    (request,) = desk.parse(RESPONSES, {**RESPONSE, "input": items}).requests
    _, made, answered = request.prompt.messages
    assert input_of(made.tool_calls[0].arguments) == PATCH
    assert (answered.role, answered.tool_call_id, answered.parts[0].text) == ("tool", "c", "done")


@pytest.mark.parametrize(
    ("choice", "mode", "offered"),
    [
        ({"type": "custom", "name": "apply_patch"}, "named", ["shell", "apply_patch"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "apply_patch"}],
            },
            "required",
            ["apply_patch"],
        ),
    ],
)
def test_a_custom_tool_can_be_chosen(
    desk: Any, choice: dict[str, Any], mode: str, offered: list[str]
) -> None:
    parsed = desk.parse(RESPONSES, {**RESPONSE, "tool_choice": choice})
    (request,) = parsed.requests
    assert request.tool_choice.mode == mode
    assert [tool.name for tool in request.prompt.tools] == offered
    assert parsed.echoed_fields["tool_choice"] == choice


def test_chat_completions_tell_a_call_of_a_custom_tool(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    entries = [
        *desk.call(parsed, 0, "apply_patch", *written(PATCH)),
        *desk.call(parsed, 1, "apply_patch", "not JSON"),
        *desk.end(parsed, "tool_calls"),
    ]
    *frames, last = [one.data for one in FrameReader().feed(desk.play(CHAT, parsed, entries))]
    assert last == "[DONE]"
    texts, heads = ["", ""], list[tuple[str, str, str]]()
    for chunk in map(json.loads, frames):
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                texts[call["index"]] += call["custom"]["input"]
                if "id" in call:
                    heads.append((call["id"], call["type"], call["custom"]["name"]))
    assert texts == [PATCH, "not JSON"]
    assert heads == [(f"call_{n}", "custom", "apply_patch") for n in range(2)]
    whole = desk.whole(CHAT, parsed, entries)
    ChatCompletion.model_validate(whole)
    calls = whole["choices"][0]["message"]["tool_calls"]
    assert [call["custom"]["input"] for call in calls] == texts
    assert {call["type"] for call in calls} == {"custom"}
