"""The bodies that Ollama's own program sends, as they are sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.wire.messages.requests import ChatPrompt
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate

CHAT, GENERATE = OllamaChat(), OllamaGenerate()


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
