"""The bodies that Ollama's own program sends, as they are sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.wire.messages.requests import ChatPrompt
from gateway.dialects.dialect import Limits
from gateway.dialects.ollama.api import OLLAMA, parse_delete
from gateway.dialects.ollama.derive import parse_copy, parse_create
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.to_come import absence

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


CREATES = (
    b'{"model":"mine","from":"m","system":"Be brief.","parameters":{"num_ctx":4096,"stop":["a"]},'
    b'"messages":[{"role":"user","content":"Hello"}],"license":["MIT"],"name":""}'
)


def test_a_create_of_a_modelfile_is_understood() -> None:
    asked = parse_create(CREATES, Limits())
    assert (asked.name, asked.source, asked.stream, asked.ignored) == ("mine", "m", True, ())
    assert (asked.system, asked.license) == ("Be brief.", "MIT")
    assert [(turn.role, turn.content) for turn in asked.turns] == [("user", "Hello")]
    assert asked.parameters == {"num_ctx": 4096, "stop": ["a"]}


def test_a_copy_and_a_delete_are_understood() -> None:
    asked = parse_copy(b'{"source":"m","destination":"mine"}', Limits())
    assert (asked.name, asked.source, asked.is_copy) == ("mine", "m", True)
    assert parse_delete(b'{"model":"mine","name":""}', Limits()).name == "mine"


@pytest.mark.parametrize("path", ["/api/push", "/api/blobs/sha256:" + "0" * 64])
def test_a_push_and_a_blob_are_answered_in_words(path: str) -> None:
    fault = absence(path)
    assert fault is not None
    said = json.loads(OLLAMA.envelope.answer(fault).body)["error"]
    assert fault.status == 404 and "is not supported" in said


def test_the_lines_of_a_load_and_an_unload(desk: Any) -> None:
    for body, reason in ((LOADS, "load"), (UNLOADS, "unload")):
        parsed = GENERATE.parse(body, desk.context())
        renderer = GENERATE.stream(parsed)
        line = json.loads(renderer.open() + renderer.close())
        assert line["created_at"] == "2025-11-20T12:00:00.500000000Z"
        assert (line["response"], line["done"], line["done_reason"]) == ("", True, reason)
