"""Anthropic's answers: the events of a stream, byte by byte and in any order, and the whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Entry, Failed, PrefillProgress, TokenDelta
from gateway.dialects import faults
from gateway.dialects.anthropic.dialect import AnthropicMessages
from gateway.dialects.anthropic.render import PING
from gateway.dialects.anthropic.shapes import call_object
from tests.harness.sse_frames import FrameReader

MESSAGES = AnthropicMessages()
BODY: dict[str, Any] = {
    "model": "shoal-tiny",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
}
USAGE = {
    "input_tokens": 7,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 4,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 2},
}
HEAD = {
    "id": "msg_req-n1-0-boot-0",
    "type": "message",
    "role": "assistant",
    "model": "shoal-tiny",
}


def _events(stream: bytes) -> list[dict[str, Any]]:
    """Every event of a stream; each is named as it says itself."""
    made: list[dict[str, Any]] = []
    for frame in FrameReader().feed(stream):
        event = json.loads(frame.data)
        assert frame.event == event["type"]
        made.append(event)
    return made


class Reader:
    """A strict client: folds events into a message, and takes none out of its order."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self.content: list[dict[str, Any]] = []
        self.json = ""
        self.is_open = self.has_reason = self.stopped = False

    def read(self, event: dict[str, Any]) -> None:
        assert not self.stopped
        match event["type"]:
            case "ping":
                assert event == {"type": "ping"}
            case "message_start":
                assert not self.message
                self.message = event["message"]
                assert self.message["content"] == []
            case "content_block_start":
                assert self.message and not self.is_open and not self.has_reason
                assert event["index"] == len(self.content)
                self.content.append(event["content_block"])
                self.is_open, self.json = True, ""
            case "content_block_delta":
                assert self.is_open and event["index"] == len(self.content) - 1
                self._fold(self.content[-1], event["delta"])
            case "content_block_stop":
                assert self.is_open and event["index"] == len(self.content) - 1
                self._end(self.content[-1])
                self.is_open = False
            case "message_delta":
                assert not self.is_open and not self.has_reason
                self.has_reason = True
                self.message |= {**event["delta"], "usage": event["usage"]}
            case "message_stop":
                assert self.has_reason
                self.stopped = True
            case other:
                raise AssertionError(other)

    def _fold(self, block: dict[str, Any], delta: dict[str, Any]) -> None:
        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"]
            case "thinking_delta":
                assert not block["signature"]
                block["thinking"] += delta["thinking"]
            case "signature_delta":
                block["signature"] += delta["signature"]
            case "input_json_delta":
                assert block["type"] == "tool_use"
                self.json += delta["partial_json"]
            case other:
                raise AssertionError(other)

    def _end(self, block: dict[str, Any]) -> None:
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = json.loads(self.json or "{}")


def _read(stream: bytes) -> dict[str, Any]:
    reader = Reader()
    for event in _events(stream):
        reader.read(event)
    assert reader.stopped
    return {**reader.message, "content": reader.content}


@given(st.data())
def test_stream_and_whole_say_the_same(desk: Any, answers: Callable[..., Any], data: Any) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    entries: list[Entry] = data.draw(answers(parsed.requests[0]))
    batch = data.draw(st.integers(1, 7))
    folded = _read(desk.play(MESSAGES, parsed, entries, batch=batch))
    assert folded == desk.whole(MESSAGES, parsed, entries)


@given(st.data())
def test_how_entries_are_batched_changes_no_byte(
    desk: Any, answers: Callable[..., Any], data: Any
) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    entries = data.draw(answers(parsed.requests[0]))
    one_by_one = desk.play(MESSAGES, parsed, entries)
    assert desk.play(MESSAGES, parsed, entries, batch=1000) == one_by_one


@given(st.lists(st.tuples(st.sampled_from(["text", "reasoning", "call"]), st.text(max_size=3))))
def test_in_whatever_order_channels_come_one_block_is_open_at_a_time(
    desk: Any, pieces: list[tuple[str, str]]
) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    ours, calls = parsed.requests[0].request_id, 0
    entries: list[Entry] = []
    for kind, text in pieces:
        if kind == "call":
            entries += desk.call(parsed, calls, "f", json.dumps({"a": text}))
            calls += 1
        else:
            channel: Any = kind
            entries.append(TokenDelta(ours, 0, 0, channel, text, 1))
    entries += desk.end(parsed)
    content = _read(desk.play(MESSAGES, parsed, entries))["content"]
    whole = desk.whole(MESSAGES, parsed, entries)["content"]
    for kind, key in (("text", "text"), ("thinking", "thinking")):
        said = [
            "".join(one[key] for one in made if one["type"] == kind) for made in (content, whole)
        ]
        assert said[0] == said[1]
    used = [[one for one in made if one["type"] == "tool_use"] for made in (content, whole)]
    assert used[0] == used[1]


def _delta(index: int, delta: str) -> str:
    return (
        "event: content_block_delta\n"
        f'data: {{"type":"content_block_delta","index":{index},"delta":{delta}}}\n\n'
    )


def _start(index: int, block: str) -> str:
    return (
        "event: content_block_start\n"
        f'data: {{"type":"content_block_start","index":{index},"content_block":{block}}}\n\n'
    )


def _stop(index: int) -> str:
    return f'event: content_block_stop\ndata: {{"type":"content_block_stop","index":{index}}}\n\n'


def test_a_stream_of_thinking_text_and_two_calls_byte_by_byte(desk: Any) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    entries = [
        *desk.reasoning(parsed, "hm", "m"),
        *desk.text(parsed, "Hel", "lo\u2028é"),
        *desk.call(parsed, 0, "look", '{"at"', ":1}"),
        *desk.call(parsed, 1, "wait"),
        *desk.end(parsed, "tool_calls"),
    ]
    assert desk.play(MESSAGES, parsed, entries).decode() == "".join(
        (
            "event: message_start\n"
            'data: {"type":"message_start","message":{"id":"msg_req-n1-0-boot-0","type":"message",'
            '"role":"assistant","model":"shoal-tiny","content":[],"stop_reason":null,'
            '"stop_sequence":null,"usage":{"input_tokens":0,"cache_creation_input_tokens":0,'
            '"cache_read_input_tokens":0,"output_tokens":0,'
            '"output_tokens_details":{"thinking_tokens":0}}}}\n\n',
            _start(0, '{"type":"thinking","thinking":"","signature":""}'),
            _delta(0, '{"type":"thinking_delta","thinking":"hm"}'),
            _delta(0, '{"type":"thinking_delta","thinking":"m"}'),
            _delta(0, '{"type":"signature_delta","signature":"shoal"}'),
            _stop(0),
            _start(1, '{"type":"text","text":""}'),
            _delta(1, '{"type":"text_delta","text":"Hel"}'),
            _delta(1, '{"type":"text_delta","text":"lo\\u2028é"}'),
            _stop(1),
            _start(2, '{"type":"tool_use","id":"toolu_0","name":"look","input":{}}'),
            _delta(2, '{"type":"input_json_delta","partial_json":"{\\"at\\""}'),
            _delta(2, '{"type":"input_json_delta","partial_json":":1}"}'),
            _stop(2),
            _start(3, '{"type":"tool_use","id":"toolu_1","name":"wait","input":{}}'),
            _stop(3),
            "event: message_delta\n"
            'data: {"type":"message_delta","delta":{"stop_reason":"tool_use",'
            '"stop_sequence":null},"usage":{"input_tokens":7,"cache_creation_input_tokens":0,'
            '"cache_read_input_tokens":4,"output_tokens":7,'
            '"output_tokens_details":{"thinking_tokens":2}}}\n\n',
            'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        )
    )


def test_a_whole_answer_has_all_its_parts(desk: Any) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    entries = [
        *desk.reasoning(parsed, "hm"),
        *desk.text(parsed, "Hel", "lo"),
        *desk.call(parsed, 0, "f", '{"a"', ":1}"),
        *desk.end(parsed, "tool_calls"),
    ]
    assert desk.whole(MESSAGES, parsed, entries) == {
        **HEAD,
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "shoal"},
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "toolu_0", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": USAGE,
    }


def test_an_answer_without_content_has_no_block(desk: Any) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    entries = [*desk.text(parsed, ""), *desk.end(parsed)]
    folded = _read(desk.play(MESSAGES, parsed, entries))
    assert folded == desk.whole(MESSAGES, parsed, entries)
    assert folded["content"] == []


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("", {}),
        ("{", {}),
        ('{"a', {}),
        ('{"a": "begu', {}),
        ('{"a": "whole", "b": "begu', {"a": "whole"}),
        ('{"a": "whole", "b": [1, {"c": "d"', {"a": "whole", "b": [1, {"c": "d"}]}),
        ('{"a": 123456789012345678901234567890, "b"', {"a": 123456789012345678901234567890}),
        ('{"a": NaN', {}),
        ("no object", {}),
        ("[1, 2", {}),
        ("[" * 100_000, {}),
    ],
)
def test_a_call_that_was_cut_off_is_a_call_with_what_is_whole_of_its_input(
    desk: Any, arguments: str, shown: dict[str, Any]
) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    entries = [*desk.call(parsed, 0, "f", arguments), *desk.end(parsed, "length")]
    whole = desk.whole(MESSAGES, parsed, entries)
    assert whole["content"] == [{"type": "tool_use", "id": "toolu_0", "name": "f", "input": shown}]
    assert whole["stop_reason"] == "max_tokens"
    streamed = _events(desk.play(MESSAGES, parsed, entries))
    begun = [one["content_block"] for one in streamed if one["type"] == "content_block_start"]
    assert begun == [{"type": "tool_use", "id": "toolu_0", "name": "f", "input": {}}]


def test_an_id_that_is_not_ours_stays_what_it_is() -> None:
    assert call_object("functions.f:0", "f", {})["id"] == "functions.f:0"


@pytest.mark.parametrize(
    ("reason", "stop", "shown", "sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", "END", "stop_sequence", "END"),
        ("length", None, "max_tokens", None),
        ("tool_calls", None, "tool_use", None),
        ("tool_calls", "END", "tool_use", None),
        ("cancelled", None, "end_turn", None),
        ("memory_pressure", None, "max_tokens", None),
    ],
)
def test_why_an_answer_ended_is_told_in_words_of_the_dialect(
    desk: Any, reason: str, stop: str | None, shown: str, sequence: str | None
) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    entries = desk.end(parsed, reason, stop=stop)
    *_, delta, _ = _events(desk.play(MESSAGES, parsed, entries))
    assert delta["delta"] == {"stop_reason": shown, "stop_sequence": sequence}
    whole = desk.whole(MESSAGES, parsed, entries)
    assert (whole["stop_reason"], whole["stop_sequence"]) == (shown, sequence)


def test_progress_and_comments_are_pings(desk: Any) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    renderer = MESSAGES.stream(parsed)
    ours = parsed.requests[0].request_id
    assert PING == b'event: ping\ndata: {"type": "ping"}\n\n'
    assert renderer.render([PrefillProgress(ours, 0, 512, 2048)]) == PING
    assert renderer.comment("loading\nweights 40%") == PING
    assert renderer.render([]) == b""


def test_a_failure_in_the_middle_is_the_last_event(desk: Any) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    renderer = MESSAGES.stream(parsed)
    ours = parsed.requests[0].request_id
    failed = Failed(ours, 1, "runner_lost", "the runner was lost; try again", Usage(), {})
    stream = renderer.open() + renderer.render(
        [*desk.text(parsed, "a"), failed, *desk.text(parsed, "late")]
    )
    assert renderer.ended
    assert renderer.close() == b"" and renderer.comment("x") == b""
    assert renderer.render(desk.text(parsed, "later")) == b""
    assert _events(stream)[-1] == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "the runner was lost; try again"},
        "request_id": parsed.answer_id,
    }
    assert b"late" not in stream


def test_an_error_from_outside_ends_the_stream_once(desk: Any) -> None:
    renderer = MESSAGES.stream(desk.parse(MESSAGES, BODY))
    fault = faults.internal("req-1")
    assert renderer.error(fault).startswith(b"event: error\ndata: {")
    assert renderer.error(fault) == b"" and renderer.close() == b""


def test_a_stream_that_is_closed_early_still_ends_its_block(desk: Any) -> None:
    parsed = desk.parse(MESSAGES, BODY)
    renderer = MESSAGES.stream(parsed)
    stream = renderer.open() + renderer.render(desk.reasoning(parsed, "a")) + renderer.close()
    assert _read(stream)["content"][0]["signature"]
    assert renderer.close() == b""


def test_the_first_event_counts_the_prompt_once_the_runner_has_and_the_last_what_was_cached(
    desk: Any,
) -> None:
    parsed = replace(desk.parse(MESSAGES, BODY), prompt_tokens=desk.usage.prompt_tokens)
    stream = desk.play(MESSAGES, parsed, [*desk.text(parsed, "a"), *desk.end(parsed)])
    events = _events(stream)
    first, last = events[0]["message"]["usage"], events[-2]["usage"]
    cached = desk.usage.cached_tokens
    assert (first["input_tokens"], first["cache_read_input_tokens"]) == (11, 0)
    assert (last["input_tokens"], last["cache_read_input_tokens"]) == (11 - cached, cached)
