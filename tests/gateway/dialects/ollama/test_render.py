from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ollama import ChatResponse, GenerateResponse

from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Entry, Failed, PrefillProgress, TokenDelta, TokenLogprob
from gateway.dialects import faults
from gateway.dialects.dialect import DatedRenderer
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.ollama.render import date

CHAT = OllamaChat()
GENERATE = OllamaGenerate()
CHAT_BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
GENERATE_BODY: dict[str, Any] = {"model": "m", "prompt": "hi"}


def _lines(stream: bytes) -> list[dict[str, Any]]:
    """As the official client reads: decoded, then split wherever Python sees a line."""
    return [json.loads(line) for line in stream.decode().splitlines()]


@given(st.data())
def test_stream_and_whole_say_the_same(desk: Any, answers: Callable[..., Any], data: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    entries: list[Entry] = data.draw(answers(parsed.requests[0]))
    lines = _lines(desk.play(CHAT, parsed, entries, batch=data.draw(st.integers(1, 5))))
    for line in lines:
        ChatResponse.model_validate(line, strict=True)
    whole = desk.whole(CHAT, parsed, entries)
    message = whole["message"]
    assert "".join(line["message"]["content"] for line in lines) == message["content"]
    thoughts = [line["message"].get("thinking", "") for line in lines]
    assert "".join(thoughts) == message.get("thinking", "")
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert calls == message.get("tool_calls", [])
    *before, last = lines
    assert not any(line["done"] for line in before)
    made_at = whole["created_at"]
    assert {**last, "message": message, "created_at": made_at} == whole


@given(st.data())
def test_generate_says_the_same_streamed_or_not(
    desk: Any, answers: Callable[..., Any], data: Any
) -> None:
    body = {**GENERATE_BODY, "raw": data.draw(st.booleans())}
    parsed = desk.parse(GENERATE, body)
    entries = data.draw(answers(parsed.requests[0], tools=False))
    lines = _lines(desk.play(GENERATE, parsed, entries))
    for line in lines:
        GenerateResponse.model_validate(line, strict=True)
        assert "message" not in line
    whole = desk.whole(GENERATE, parsed, entries)
    assert "".join(line["response"] for line in lines) == whole["response"]
    assert "".join(line.get("thinking", "") for line in lines) == whole.get("thinking", "")


def test_a_short_stream_line_by_line(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    entries = [*desk.reasoning(parsed, "hm"), *desk.text(parsed, "a\u2028"), *desk.end(parsed)]
    head = (
        '{"model":"m","created_at":"2025-11-20T12:00:00.500000000Z","message":{"role":"assistant",'
    )
    assert desk.play(CHAT, parsed, entries).decode().split("\n") == [
        head + '"content":"","thinking":"hm"},"done":false}',
        head + '"content":"a\\u2028"},"done":false}',
        head + '"content":""},"done":true,"done_reason":"stop","total_duration":2000000000,'
        '"load_duration":0,"prompt_eval_count":11,"prompt_eval_duration":250000000,'
        '"eval_count":7,"eval_duration":1250000000}',
        "",
    ]


def test_calls_come_whole_with_arguments_as_an_object(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    entries = [
        *desk.call(parsed, 0, "f", '{"a"', ":[1]}"),
        *desk.call(parsed, 1, "g"),
        *desk.end(parsed, "tool_calls"),
    ]
    *lines, last = _lines(desk.play(CHAT, parsed, entries))
    assert [line["message"]["tool_calls"] for line in lines] == [
        [{"id": "call_0", "function": {"index": 0, "name": "f", "arguments": {"a": [1]}}}],
        [{"id": "call_1", "function": {"index": 1, "name": "g", "arguments": {}}}],
    ]
    assert last["done_reason"] == "stop"
    assert last["message"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("begun", [(), ('{"a": ',), ('{"a": "x', "y")])
@pytest.mark.parametrize(
    ("reason", "stop", "told"), [("length", None, "length"), ("tool_calls", "x", "stop")]
)
def test_a_call_that_was_cut_off_is_left_out_and_the_end_says_why(
    desk: Any, begun: tuple[str, ...], reason: str, stop: str | None, told: str
) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    entries = [
        *desk.call(parsed, 0, "f", '{"b":1}'),
        *desk.call(parsed, 1, "f", *begun),
        *desk.end(parsed, reason, stop=stop),
    ]
    first, last = _lines(desk.play(CHAT, parsed, entries))
    whole = desk.whole(CHAT, parsed, entries)
    for message in (first["message"], whole["message"]):
        assert message["content"] == ""
        assert [call["function"]["arguments"] for call in message["tool_calls"]] == [{"b": 1}]
    assert last["message"] == {"role": "assistant", "content": ""}
    assert last["done_reason"] == whole["done_reason"] == told


def test_a_call_that_was_complete_when_the_answer_was_cut_is_a_call(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    entries = [*desk.call(parsed, 0, "f", '{"a": 1}'), *desk.end(parsed, "length")]
    first, last = _lines(desk.play(CHAT, parsed, entries))
    [call] = first["message"]["tool_calls"]
    assert (call["function"]["arguments"], last["done_reason"]) == ({"a": 1}, "length")


def test_a_stream_that_ends_while_thinking_is_done_all_the_same(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    entries = [*desk.reasoning(parsed, "hm"), *desk.end(parsed, "length")]
    last = _lines(desk.play(CHAT, parsed, entries))[-1]
    assert (last["done"], last["done_reason"]) == (True, "length")


def test_a_failure_in_the_middle_is_an_error_line(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    renderer = CHAT.stream(parsed)
    ours = parsed.requests[0].request_id
    stream = renderer.render(
        [
            *desk.text(parsed, "a"),
            Failed(ours, 1, "deadline", "too late", Usage(), {}),
            *desk.text(parsed, "b"),
        ]
    )
    assert _lines(stream)[-1] == {"error": "too late"}
    assert renderer.ended
    assert renderer.close() == b""
    assert renderer.error(faults.internal("x")) == b""
    assert renderer.render(desk.text(parsed, "c")) == b""


def test_there_are_no_comments(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    renderer = CHAT.stream(parsed)
    ours = parsed.requests[0].request_id
    assert renderer.open() == b""
    assert renderer.comment("wait") == b""
    assert renderer.render([PrefillProgress(ours, 0, 1, 2)]) == b""


def test_loading_is_part_of_the_total(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    last = _lines(desk.play(CHAT, parsed, desk.end(parsed), load_s=1.5))[-1]
    assert last["load_duration"] == 1_500_000_000
    assert last["total_duration"] == 3_500_000_000


@pytest.mark.parametrize(
    ("dialect", "keep_alive", "reason"),
    [(CHAT, 60, "load"), (CHAT, 0, "unload"), (GENERATE, 60, "load"), (GENERATE, "0", "unload")],
)
def test_a_body_that_only_loads_is_answered_the_same_streamed_or_not(
    desk: Any, dialect: Any, keep_alive: Any, reason: str
) -> None:
    parsed = desk.parse(dialect, {"model": "m", "keep_alive": keep_alive})
    renderer = dialect.stream(parsed, load_s=0.25)
    assert renderer.ended
    [line] = _lines(renderer.open() + renderer.close())
    assert line == json.loads(dialect.render_whole(parsed, (), load_s=0.25))
    assert (line["done"], line["done_reason"], line["load_duration"]) == (True, reason, 250_000_000)
    assert line["message"]["content"] == "" if dialect is CHAT else line["response"] == ""


def test_log_probabilities_stand_beside_the_text(desk: Any) -> None:
    parsed = desk.parse(CHAT, {**CHAT_BODY, "logprobs": True, "top_logprobs": 1})
    token = TokenLogprob(5, "é", -0.5, ((6, "e", float("-inf")),))
    thought = TokenDelta(parsed.requests[0].request_id, 0, 0, "reasoning", "hm", 1, (token,))
    entries = [thought, desk.with_logprob(parsed, token), *desk.end(parsed)]
    wanted = [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [0xC3, 0xA9],
            "top_logprobs": [{"token": "e", "logprob": -9999.0, "bytes": [101]}],
        }
    ]
    thinking, text, _ = _lines(desk.play(CHAT, parsed, entries))
    assert thinking["message"]["thinking"] == "hm"
    assert "logprobs" not in thinking
    assert text["logprobs"] == wanted
    whole = desk.whole(CHAT, parsed, entries)
    assert whole["logprobs"] == wanted
    ChatResponse.model_validate(whole, strict=True)


def test_dates_are_dates(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    whole = desk.whole(CHAT, parsed, desk.end(parsed))
    at = datetime.fromisoformat(whole["created_at"])
    took_s = whole["total_duration"] / 1e9
    assert took_s > 0 and at.timestamp() == parsed.created_at_s + took_s


@given(st.integers(0, 2**32 * 10**9))
def test_a_date_has_nine_digits_and_is_the_time_it_was_made_of(at_ns: int) -> None:
    text = date(at_ns / 1e9)
    whole, digits = text.removesuffix("Z").split(".")
    assert len(digits) == 9
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    # a float of seconds tells times of our days apart by some 240 ns
    assert abs(seconds * 10**9 + int(digits) - at_ns) < 1000


def test_each_line_says_when_it_was_made(desk: Any) -> None:
    parsed = desk.parse(CHAT, CHAT_BODY)
    renderer = CHAT.stream(parsed)
    assert isinstance(renderer, DatedRenderer)
    renderer.at(1_763_640_001.25)
    first = renderer.render(desk.text(parsed, "a"))
    renderer.at(1_763_640_002.75)
    last = renderer.render(desk.call(parsed, 0, "f") + desk.end(parsed)) + renderer.close()
    stamps = [line["created_at"] for line in _lines(first + last)]
    assert stamps == [
        "2025-11-20T12:00:01.250000000Z",
        *["2025-11-20T12:00:02.750000000Z"] * 2,
    ]


def test_what_is_not_known_of_a_log_probability_is_left_out(desk: Any) -> None:
    parsed = desk.parse(GENERATE, {**GENERATE_BODY, "logprobs": True})
    half = TokenLogprob(5, "\ufffd", -0.5, ())
    [line, _] = _lines(
        desk.play(GENERATE, parsed, [desk.with_logprob(parsed, half), *desk.end(parsed)])
    )
    assert line["logprobs"] == [{"token": "\ufffd", "logprob": -0.5}]
