"""Ollama's streams byte for byte, and the bodies that its own program sends, as they are sent."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from bus.wire.errors import FailReason
from bus.wire.messages.requests import ChatPrompt, Usage
from bus.wire.messages.tokens import ChoiceEnd, Entry, Failed, Finished
from gateway.dialects.dialect import DatedRenderer, Dialect, Parsed
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from tests.gateway.dialects.conftest import USAGE

CHAT, GENERATE = OllamaChat(), OllamaGenerate()
CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
GENERATE_BODY = {"model": "m:latest", "prompt": "hi"}
FIGURES = (
    '"total_duration":2000000000,"load_duration":0,"prompt_eval_count":11,'
    '"prompt_eval_duration":250000000,"eval_count":7,"eval_duration":1250000000}\n'
)
HOUR_S = 1_763_640_000


def played(dialect: Dialect, parsed: Parsed, entries: Sequence[Entry]) -> str:
    """The stream of these entries, one each second."""
    renderer = dialect.stream(parsed)
    assert isinstance(renderer, DatedRenderer)
    seconds = itertools.count(HOUR_S + 1)
    stream = renderer.open()
    for entry in entries:
        renderer.at(next(seconds))
        stream += renderer.render([entry])
    assert renderer.ended
    return (stream + renderer.close()).decode()


def chat_line(second: int, message: str, rest: str = '"done":false}\n') -> str:
    at = f"2025-11-20T12:00:{second:02d}.000000000Z"
    said = f'{{"role":"assistant",{message}}}'
    return f'{{"model":"m","created_at":"{at}","message":{said},{rest}'


def test_text(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    entries = [*desk.text(parsed, "He", 'l"lo'), *desk.end(parsed)]
    assert played(CHAT, parsed, entries) == (
        chat_line(1, '"content":"He"')
        + chat_line(2, '"content":"l\\"lo"')
        + chat_line(4, '"content":""', f'"done":true,"done_reason":"stop",{FIGURES}')
    )


def test_thinking(desk: Any) -> None:
    parsed = desk.parse(CHAT, {**CHAT_BODY, "think": True})
    entries = [*desk.reasoning(parsed, "hm"), *desk.text(parsed, "a"), *desk.end(parsed)]
    assert played(CHAT, parsed, entries) == (
        chat_line(1, '"content":"","thinking":"hm"')
        + chat_line(2, '"content":"a"')
        + chat_line(4, '"content":""', f'"done":true,"done_reason":"stop",{FIGURES}')
    )


def test_two_parallel_tool_calls(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    entries = [
        *desk.call(parsed, 0, "f", '{"a"', ":[1]}"),
        *desk.call(parsed, 1, "g"),
        *desk.end(parsed, "tool_calls"),
    ]
    first = '{"id":"call_0","function":{"index":0,"name":"f","arguments":{"a":[1]}}}'
    second = '{"id":"call_1","function":{"index":1,"name":"g","arguments":{}}}'
    assert played(CHAT, parsed, entries) == (
        chat_line(4, f'"content":"","tool_calls":[{first}]')
        + chat_line(5, f'"content":"","tool_calls":[{second}]')
        + chat_line(6, '"content":""', f'"done":true,"done_reason":"stop",{FIGURES}')
    )


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_an_end_by_length_or_by_a_cancel(desk: Any, reason: str) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    entries = [*desk.text(parsed, "a"), *desk.end(parsed, reason)]
    assert played(CHAT, parsed, entries) == (
        chat_line(1, '"content":"a"')
        + chat_line(3, '"content":""', f'"done":true,"done_reason":"{reason}",{FIGURES}')
    )


@pytest.mark.parametrize("reason", ["runner_lost", "deadline"])
def test_an_error_in_the_middle(desk: Any, reason: FailReason) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    ours = parsed.requests[0].request_id
    entries = [*desk.text(parsed, "a"), Failed(ours, 1, reason, "it is gone", Usage(), {})]
    assert played(CHAT, parsed, entries) == (
        chat_line(1, '"content":"a"') + '{"error":"it is gone"}\n'
    )


def test_generate_says_the_name_as_it_was_asked(desk: Any) -> None:
    parsed = desk.parse(GENERATE, GENERATE_BODY)
    head = '{"model":"m:latest","created_at":"2025-11-20T12:00:0'
    ours = parsed.requests[0].request_id
    entries = [
        *desk.reasoning(parsed, "hm"),
        *desk.text(parsed, "a"),
        ChoiceEnd(ours, 0, 0, "stop", None),
        Finished(ours, 0, USAGE),
    ]
    assert played(GENERATE, parsed, entries) == (
        f'{head}1.000000000Z","response":"","thinking":"hm","done":false}}\n'
        f'{head}2.000000000Z","response":"a","done":false}}\n'
        f'{head}4.000000000Z","response":"","done":true,"done_reason":"stop",{FIGURES}'
    )


# --- what `ollama run`, `stop` and `rm` send ------------------------------------------------------

LOADS = b'{"model":"m","prompt":"","suffix":"","system":"","template":"","options":null}'
LOADS_AND_STAYS = (
    b'{"model":"m","prompt":"","suffix":"","system":"","template":"","keep_alive":"10m0s",'
    b'"options":null,"think":true}'
)
UNLOADS = (
    b'{"model":"m","prompt":"","suffix":"","system":"","template":"","keep_alive":"0s",'
    b'"options":null}'
)
FOR_EVER = UNLOADS.replace(b'"0s"', b"-1")
ANSWERS = (
    b'{"model":"m","prompt":"Why?","suffix":"","system":"","template":"","options":{},"think":true}'
)
TALKS = (
    b'{"model":"m","messages":[{"role":"system","content":"Be brief."},'
    b'{"role":"user","content":"Why?"},'
    b'{"role":"assistant","content":"","thinking":"hm","tool_calls":[{"id":"c1","function":'
    b'{"index":0,"name":"look","arguments":{"at":"it"}}}]},'
    b'{"role":"tool","content":"so","tool_name":"look","tool_call_id":"c1"}],'
    b'"tools":[{"type":"function","function":{"name":"look","description":"d","parameters":'
    b'{"type":"object","required":["at"],"properties":{"at":{"type":"string"}}}}}],'
    b'"options":null,"think":false}'
)


@pytest.mark.parametrize(
    ("body", "intent", "keep_alive_s"),
    [
        (LOADS, "load", None),
        (LOADS_AND_STAYS, "load", 600.0),
        (UNLOADS, "unload", 0.0),
        (FOR_EVER, "load", float("inf")),
    ],
)
def test_a_generate_without_a_prompt_loads_or_unloads(
    desk: Any, body: bytes, intent: str, keep_alive_s: float | None
) -> None:
    parsed = GENERATE.parse(body, desk.context())
    assert (parsed.intent, parsed.requests, parsed.stream) == (intent, (), True)
    assert parsed.extras.keep_alive_s == keep_alive_s


def test_a_prompt_on_the_command_line_is_answered(desk: Any) -> None:
    parsed = GENERATE.parse(ANSWERS, desk.context())
    [request] = parsed.requests
    assert isinstance(request.prompt, ChatPrompt)
    assert [part.text for turn in request.prompt.messages for part in turn.parts] == ["Why?"]
    assert (request.thinking, request.max_tokens, parsed.stream) == (True, None, True)


def test_a_conversation_with_options_null_is_understood(desk: Any) -> None:
    [request] = CHAT.parse(TALKS, desk.context()).requests
    assert isinstance(request.prompt, ChatPrompt)
    assert [turn.role for turn in request.prompt.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert request.prompt.messages[2].tool_calls[0].call_id == "c1"
    assert request.prompt.messages[3].tool_call_id == "c1"
    assert [tool.name for tool in request.prompt.tools] == ["look"]
    assert request.thinking is False


def test_the_lines_of_a_load_and_an_unload(desk: Any) -> None:
    for body, reason in ((LOADS, "load"), (UNLOADS, "unload")):
        parsed = GENERATE.parse(body, desk.context())
        renderer = GENERATE.stream(parsed)
        line = json.loads(renderer.open() + renderer.close())
        assert line["created_at"] == "2025-11-20T12:00:00.500000000Z"
        assert (line["response"], line["done"], line["done_reason"]) == ("", True, reason)
