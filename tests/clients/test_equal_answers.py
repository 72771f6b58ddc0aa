"""One conversation in all four dialects, greedily: the same text, calls and counts of tokens.

Streamed or not. Where a dialect says how many tokens of a prompt were cached, they are added to the
others; call ids are each request's own, and left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.harness.sse_frames import FrameReader

MOST = 200
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The city"}},
    "required": ["city"],
}
NAMED = {"name": "get_weather", "description": "Get the weather for a city"}
FUNCTION = {**NAMED, "parameters": PARAMETERS}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = {"city": "Paris"}
WEATHER = "18 degrees, sunny"


@dataclass(frozen=True)
class Question:
    """What is asked: the last words of the user, whether the call and its answer stand before them,
    and whether tools or a schema are given."""

    text: str
    after_call: bool = False
    tools: bool = False
    schema: bool = False
    thinks: bool = False


QUESTIONS = {
    "a call": Question("What is the weather in Paris?", tools=True),
    "an answer to a call": Question("Thank you. And who are you?", after_call=True, tools=True),
    "a schema": Question("Describe a person as JSON", schema=True),
    "a schema after a call": Question("Describe a person as JSON", after_call=True, schema=True),
    "thoughts": Question("List the integers from 1 to 30", thinks=True),
}
BRIEF = ("a call", "a schema after a call", "thoughts")
"""Those that each test run asks; `make prove-clients` asks all."""


@dataclass
class Answer:
    """What came back, as every dialect can say it."""

    text: str = ""
    thoughts: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    prompt_tokens: int = 0
    answer_tokens: int = 0


Lines = Iterator[dict[str, Any]]


# --- how each dialect asks ------------------------------------------------------------------


def chat_body(asked: Question) -> dict[str, Any]:
    turns: list[dict[str, Any]] = [{"role": "user", "content": QUESTIONS["a call"].text}]
    if asked.after_call:
        function = {"name": "get_weather", "arguments": json.dumps(CITY)}
        call = {"id": "call_1", "type": "function", "function": function}
        turns += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": WEATHER},
        ]
    body: dict[str, Any] = {
        "messages": _with_question(turns, asked),
        "max_tokens": MOST,
        "temperature": 0,
        "reasoning_effort": "high" if asked.thinks else "none",
    }
    if asked.tools:
        body["tools"] = [{"type": "function", "function": FUNCTION}]
    if asked.schema:
        wanted = {"name": "person", "schema": SCHEMA}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return body


def responses_body(asked: Question) -> dict[str, Any]:
    turns: list[dict[str, Any]] = [{"role": "user", "content": QUESTIONS["a call"].text}]
    if asked.after_call:
        call = {"call_id": "call_1", "name": "get_weather", "arguments": json.dumps(CITY)}
        turns += [
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": "call_1", "output": WEATHER},
        ]
    body: dict[str, Any] = {
        "input": _with_question(turns, asked),
        "max_output_tokens": MOST,
        "temperature": 0,
        "store": False,
        "reasoning": {"effort": "high" if asked.thinks else "none"},
    }
    if asked.tools:
        body["tools"] = [{"type": "function", **FUNCTION}]
    if asked.schema:
        body["text"] = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
    return body


def messages_body(asked: Question) -> dict[str, Any]:
    turns: list[dict[str, Any]] = [{"role": "user", "content": QUESTIONS["a call"].text}]
    if asked.after_call:
        call = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": CITY}
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": WEATHER}
        turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    body: dict[str, Any] = {
        "messages": _with_question(turns, asked),
        "max_tokens": MOST,
        "temperature": 0,
        "thinking": {"type": "enabled" if asked.thinks else "disabled"},
    }
    if asked.tools:
        body["tools"] = [{**NAMED, "input_schema": PARAMETERS}]
    if asked.schema:
        body["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
    return body


def ollama_body(asked: Question) -> dict[str, Any]:
    turns: list[dict[str, Any]] = [{"role": "user", "content": QUESTIONS["a call"].text}]
    if asked.after_call:
        call = {"id": "call_1", "function": {"name": "get_weather", "arguments": CITY}}
        turns += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": WEATHER, "tool_name": "get_weather"},
        ]
    body: dict[str, Any] = {
        "messages": _with_question(turns, asked),
        "options": {"num_predict": MOST, "temperature": 0},
        "think": asked.thinks,
    }
    if asked.tools:
        body["tools"] = [{"type": "function", "function": FUNCTION}]
    if asked.schema:
        body["format"] = SCHEMA
    return body


def _with_question(turns: list[dict[str, Any]], asked: Question) -> list[dict[str, Any]]:
    question = {"role": "user", "content": asked.text}
    return [*turns, question] if asked.after_call else [question]


# --- how each dialect answers -----------------------------------------------------------------


def chat_answer(lines: Lines) -> Answer:
    """Of a whole answer, or of the chunks of a stream: messages and deltas have the same names."""
    made, calls = Answer(), dict[int, list[str]]()
    for line in lines:
        for choice in line["choices"]:
            said = choice.get("message") or choice["delta"]
            made.text += said.get("content") or ""
            made.thoughts += said.get("reasoning_content") or ""
            for number, call in enumerate(said.get("tool_calls", ())):
                pieces = calls.setdefault(call.get("index", number), ["", ""])
                pieces[0] += call["function"].get("name", "")
                pieces[1] += call["function"]["arguments"]
        if usage := line.get("usage"):
            made.prompt_tokens = usage["prompt_tokens"]
            made.answer_tokens = usage["completion_tokens"]
    made.calls = [(name, json.loads(arguments)) for name, arguments in calls.values()]
    return made


def responses_answer(lines: Lines) -> Answer:
    made, deltas = Answer(), ""
    for line in lines:
        deltas += line["delta"] if line.get("type") == "response.output_text.delta" else ""
        last = line.get("response", line)
        if last.get("usage") is None:
            continue
        for item in last["output"]:
            match item["type"]:
                case "message":
                    made.text += "".join(part["text"] for part in item["content"])
                case "reasoning":
                    made.thoughts += "".join(part["text"] for part in item["content"])
                case _:
                    made.calls.append((item["name"], json.loads(item["arguments"])))
        made.prompt_tokens = last["usage"]["input_tokens"]
        made.answer_tokens = last["usage"]["output_tokens"]
    assert deltas in ("", made.text)
    return made


def messages_answer(lines: Lines) -> Answer:
    made, blocks = Answer(), dict[int, dict[str, Any]]()
    for line in lines:
        match line["type"]:
            case "message":
                whole: list[dict[str, Any]] = line["content"]
                blocks.update(enumerate(whole))
            case "content_block_start":
                blocks[line["index"]] = {**line["content_block"], "json": ""}
            case "content_block_delta":
                block, delta = blocks[line["index"]], line["delta"]
                block["text"] = block.get("text", "") + delta.get("text", "")
                block["thinking"] = block.get("thinking", "") + delta.get("thinking", "")
                block["json"] += delta.get("partial_json", "")
            case _:
                pass
        if line["type"] in ("message", "message_delta"):
            used = line["usage"]
            cached = used["cache_read_input_tokens"] + used["cache_creation_input_tokens"]
            made.prompt_tokens = used["input_tokens"] + cached
            made.answer_tokens = used["output_tokens"]
    for block in blocks.values():
        match block["type"]:
            case "text":
                made.text += block["text"]
            case "thinking":
                made.thoughts += block["thinking"]
            case _:
                given = json.loads(block["json"]) if "json" in block else block["input"]
                made.calls.append((block["name"], given))
    return made


def ollama_answer(lines: Lines) -> Answer:
    made = Answer()
    for line in lines:
        said = line["message"]
        made.text += said["content"]
        made.thoughts += said.get("thinking", "")
        made.calls += [
            (call["function"]["name"], call["function"]["arguments"])
            for call in said.get("tool_calls", ())
        ]
        if line["done"]:
            made.prompt_tokens, made.answer_tokens = line["prompt_eval_count"], line["eval_count"]
    return made


@dataclass(frozen=True)
class Way:
    """How a dialect is asked, and how it answers."""

    path: str
    body: Callable[[Question], dict[str, Any]]
    answer: Callable[[Lines], Answer]


WAYS: Mapping[str, Way] = {
    "chat": Way("/v1/chat/completions", chat_body, chat_answer),
    "responses": Way("/v1/responses", responses_body, responses_answer),
    "messages": Way("/v1/messages", messages_body, messages_answer),
    "ollama": Way("/api/chat", ollama_body, ollama_answer),
}


def answer_of(node_url: str, model: str, way: Way, asked: Question, *, stream: bool) -> Answer:
    body: dict[str, Any] = {"model": model, **way.body(asked), "stream": stream}
    if stream and way is WAYS["chat"]:
        body["stream_options"] = {"include_usage": True}
    answer = httpx.post(f"{node_url}{way.path}", json=body, timeout=90)
    assert answer.status_code == 200, answer.text
    assert "x-shoal-ignored" not in answer.headers
    if answer.headers["content-type"].startswith("text/event-stream"):
        frames = FrameReader().feed(answer.content)
        lines = [json.loads(frame.data) for frame in frames if frame.data != "[DONE]"]
    else:
        lines = [json.loads(line) for line in answer.text.splitlines()]
    assert (len(lines) > 1) is stream
    return way.answer(iter(lines))


@pytest.mark.parametrize(
    "question",
    [pytest.param(name, marks=() if name in BRIEF else pytest.mark.proof) for name in QUESTIONS],
)
def test_the_same_answer_comes_in_all_dialects(node_url: str, model: str, question: str) -> None:
    asked = QUESTIONS[question]
    answers = {
        (name, stream): answer_of(node_url, model, way, asked, stream=stream)
        for name, way in WAYS.items()
        for stream in (False, True)
    }
    first = answers["chat", False]
    assert {key: one for key, one in answers.items() if one != first} == {}
    assert first.prompt_tokens > 0 and 0 < first.answer_tokens <= MOST
    assert first.text or first.calls
    if asked.schema:
        assert set(json.loads(first.text)) == {"name", "age"}
    if question == "a call":
        assert [name for name, _ in first.calls] == ["get_weather"]
        assert set(first.calls[0][1]) == {"city"}
    assert bool(first.thoughts) is asked.thinks
