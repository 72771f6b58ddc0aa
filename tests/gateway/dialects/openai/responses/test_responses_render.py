"""Responses: the events of a stream, byte by byte and in any order, and the whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import responses as published
from pydantic import TypeAdapter

from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Entry, Failed, PrefillProgress, TokenDelta, TokenLogprob
from gateway.dialects import faults
from gateway.dialects.dialect import KeptAnswer
from gateway.dialects.openai.responses import OpenAIResponses, replayed
from tests.harness.sse_frames import FrameReader

RESPONSES = OpenAIResponses()
BODY: dict[str, Any] = {"model": "shoal-tiny", "input": "hi", "stream": True}
EVENT: TypeAdapter[Any] = TypeAdapter(published.ResponseStreamEvent)
PUBLISHED_CODE = '"code":"invalid_prompt",'
USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 18,
}
KEYS = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
    *(
        "output",
        "error",
        "usage",
        "previous_response_id",
        "conversation",
        "instructions",
        "tools",
        "tool_choice",
    ),
    *("parallel_tool_calls", "text", "reasoning", "temperature", "top_p", "presence_penalty"),
    *("frequency_penalty", "top_logprobs", "max_output_tokens", "max_tool_calls", "truncation"),
    *("background", "store", "service_tier", "metadata", "user", "safety_identifier"),
    "prompt_cache_key",
}
NEVER_NULL = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"),
    *("truncation", "background", "service_tier", "tools", "tool_choice"),
)

SUMMED: dict[str, Any] = {"reasoning": {"summary": "auto"}}
PACKED: dict[str, Any] = {"include": ["reasoning.encrypted_content"]}
TELLING: tuple[dict[str, Any], ...] = ({}, SUMMED, {**SUMMED, **PACKED})
"""What a body may ask to be told of thinking."""


def _events(stream: bytes) -> list[dict[str, Any]]:
    """Every event of a stream: named as it says itself, numbered, of a published shape."""
    made: list[dict[str, Any]] = []
    for frame in FrameReader().feed(stream):
        event = json.loads(frame.data)
        assert frame.event == event["type"]
        assert event["sequence_number"] == len(made)
        # the provider says this code, though its schema does not have it
        told = json.loads(frame.data.replace('"code":"context_length_exceeded",', PUBLISHED_CODE))
        EVENT.validate_python(told)
        made.append(event)
    return made


class Reader:
    """A strict client: folds events into a response, and takes none out of its order."""

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] = []
        self.item: dict[str, Any] | None = None
        self.said: str | None = None
        self.summary = ""
        self.last: dict[str, Any] = {}

    def read(self, event: dict[str, Any]) -> None:
        assert not self.last
        kind = event["type"].removeprefix("response.")
        if "item_id" in event:
            assert self.item is not None and event["item_id"] == self.item["id"]
            assert event["output_index"] == len(self.output)
        match kind:
            case "created" | "in_progress":
                assert event["response"]["status"] == "in_progress" and not self.output
            case "output_item.added":
                assert self.item is None and event["output_index"] == len(self.output)
                self.item = event["item"]
                assert self.item["status"] == "in_progress"
                self.said = "" if self.item["type"] == "function_call" else None
            case "content_part.added":
                assert self.said is None and event["part"]["text"] == ""
                self.said = ""
            case "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta":
                assert self.said is not None and event["delta"]
                self.said += event["delta"]
            case "output_text.done" | "reasoning_text.done" | "content_part.done":
                assert self.said == event.get("text", event.get("part", {}).get("text"))
            case "reasoning_summary_part.added":
                assert self.said == self.summary == "" == event["part"]["text"]
            case "reasoning_summary_text.delta":
                self.summary += event["delta"]
                assert self.summary == self.said
            case "reasoning_summary_text.done" | "reasoning_summary_part.done":
                assert self.summary == event.get("text", event.get("part", {}).get("text"))
            case "function_call_arguments.done":
                assert (self.said, self.item["name"]) == (event["arguments"], event["name"])
            case "output_item.done":
                self._end(event["item"])
            case "completed" | "incomplete":
                self.last = event["response"]
                assert self.item is None and self.last["output"] == self.output
            case other:
                raise AssertionError(other)

    def _end(self, item: dict[str, Any]) -> None:
        assert self.item is not None and item["id"] == self.item["id"]
        whole = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert whole == self.said
        if item["type"] == "reasoning":
            assert "".join(part["text"] for part in item["summary"]) == self.summary
        self.output.append(item)
        self.item = self.said = None
        self.summary = ""


def _read(stream: bytes) -> dict[str, Any]:
    reader = Reader()
    for event in _events(stream):
        reader.read(event)
    assert reader.last
    return reader.last


@given(st.data())
def test_stream_and_whole_say_the_same(desk: Any, answers: Callable[..., Any], data: Any) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, **data.draw(st.sampled_from(TELLING))})
    entries: list[Entry] = data.draw(answers(parsed.requests[0]))
    batch = data.draw(st.integers(1, 7))
    folded = _read(desk.play(RESPONSES, parsed, entries, batch=batch))
    assert folded == desk.whole(RESPONSES, parsed, entries)
    assert set(folded) == KEYS
    assert all(folded[name] is not None for name in NEVER_NULL)
    published.Response.model_validate(folded)


@given(st.data())
def test_a_kept_response_is_told_again_in_the_events_of_its_stream(
    desk: Any, answers: Callable[..., Any], data: Any
) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, **data.draw(st.sampled_from(TELLING))})
    whole = desk.whole(RESPONSES, parsed, data.draw(answers(parsed.requests[0])))
    kept = KeptAnswer(json.dumps(whole).encode(), ())
    stream = replayed(kept, {})
    assert _read(stream) == whole
    after = data.draw(st.integers(0, 20))
    numbers = [event["sequence_number"] for event in _events(stream)]
    rest = FrameReader().feed(replayed(kept, {"starting_after": str(after)}))
    told = [json.loads(frame.data)["sequence_number"] for frame in rest]
    assert told == [number for number in numbers if number > after]


@given(st.data())
def test_how_entries_are_batched_changes_no_byte(
    desk: Any, answers: Callable[..., Any], data: Any
) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, **data.draw(st.sampled_from(TELLING))})
    entries = data.draw(answers(parsed.requests[0]))
    one_by_one = desk.play(RESPONSES, parsed, entries)
    assert desk.play(RESPONSES, parsed, entries, batch=1000) == one_by_one


@given(st.lists(st.tuples(st.sampled_from(["text", "reasoning", "call"]), st.text(max_size=3))))
def test_in_whatever_order_channels_come_one_item_is_open_at_a_time(
    desk: Any, pieces: list[tuple[str, str]]
) -> None:
    parsed = desk.parse(RESPONSES, BODY)
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
    output = _read(desk.play(RESPONSES, parsed, entries))["output"]
    whole = desk.whole(RESPONSES, parsed, entries)["output"]
    assert len({one["id"] for one in output}) == len(output)
    for kind in ("message", "reasoning"):
        said = [
            "".join(one["content"][0]["text"] for one in made if one["type"] == kind)
            for made in (output, whole)
        ]
        assert said[0] == said[1]
    called = [[one for one in made if one["type"] == "function_call"] for made in (output, whole)]
    assert called[0] == called[1]


def test_a_summary_that_is_asked_for_is_told_beside_the_thinking(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, "reasoning": {"generate_summary": "concise"}})
    entries = [*desk.reasoning(parsed, "hm", "m"), *desk.text(parsed, "a"), *desk.end(parsed)]
    stream = desk.play(RESPONSES, parsed, entries)
    kinds = [event["type"].removeprefix("response.") for event in _events(stream)][2:13]
    pair = ["reasoning_text.delta", "reasoning_summary_text.delta"]
    assert kinds == [
        *("output_item.added", "content_part.added", "reasoning_summary_part.added"),
        *(*pair, *pair, "reasoning_text.done", "content_part.done"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done"),
    ]
    folded = _read(stream)
    assert folded["output"][0]["summary"] == [{"type": "summary_text", "text": "hmm"}]
    assert folded["reasoning"]["summary"] == "concise"
    none = desk.parse(RESPONSES, {**BODY, "reasoning": {"summary": "none"}})
    assert desk.whole(RESPONSES, none, entries)["output"][0]["summary"] == []


def test_an_answer_of_calls_alone_has_no_message(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, BODY)
    entries = [*desk.text(parsed, ""), *desk.call(parsed, 0, "f"), *desk.end(parsed, "tool_calls")]
    folded = _read(desk.play(RESPONSES, parsed, entries))
    assert [one["type"] for one in folded["output"]] == ["function_call"]
    assert folded == desk.whole(RESPONSES, parsed, entries)
    nothing = desk.end(parsed)
    assert _read(desk.play(RESPONSES, parsed, nothing))["output"] == []


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("memory_pressure", "incomplete", {"reason": "max_output_tokens"}),
        ("cancelled", "cancelled", None),
    ],
)
def test_why_an_answer_ended_is_told_in_words_of_the_dialect(
    desk: Any, reason: str, status: str, why: Any
) -> None:
    parsed = desk.parse(RESPONSES, BODY)
    entries = [*desk.text(parsed, "a"), *desk.end(parsed, reason)]
    last = _events(desk.play(RESPONSES, parsed, entries))[-1]
    whole = desk.whole(RESPONSES, parsed, entries)
    assert last["response"] == whole
    assert (whole["status"], whole["incomplete_details"]) == (status, why)
    completed = status == "completed"
    assert last["type"] == ("response.completed" if completed else "response.incomplete")
    assert whole["output"][0]["status"] == ("completed" if completed else "incomplete")
    assert (whole["completed_at"] == 1_763_640_002) is completed


def test_a_call_that_is_whole_when_the_limit_comes_is_complete(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, BODY)
    entries = [*desk.call(parsed, 0, "f", '{"a":1}'), *desk.end(parsed, "length")]
    folded = _read(desk.play(RESPONSES, parsed, entries))
    assert folded["output"][0]["status"] == "completed" and folded["status"] == "incomplete"
    assert folded == desk.whole(RESPONSES, parsed, entries)


def test_log_probabilities_come_with_their_text_and_with_the_whole(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, "top_logprobs": 1})
    ours = parsed.requests[0].request_id
    silent = TokenLogprob(6, "", -0.5, ())
    entries: list[Entry] = [
        TokenDelta(ours, 0, 0, "text", "", 1, (silent,)),
        desk.with_logprob(parsed, TokenLogprob(7, "a", -0.25, ((7, "a", -0.25),))),
        desk.with_logprob(
            parsed, TokenLogprob(8, "b", -1.5, ((9, "c", -1.0), (5, "\ufffd", -2.0)))
        ),
        *desk.end(parsed),
    ]
    stream = desk.play(RESPONSES, parsed, entries)
    deltas = [one for one in _events(stream) if one["type"] == "response.output_text.delta"]
    assert [[one["token"] for one in delta["logprobs"]] for delta in deltas] == [["", "a"], ["b"]]
    folded = _read(stream)
    told = folded["output"][0]["content"][0]["logprobs"]
    assert [one["logprob"] for one in told] == [-0.5, -0.25, -1.5]
    assert told[2]["top_logprobs"] == [
        {"token": "c", "logprob": -1.0, "bytes": [99]},
        {"token": "\ufffd", "logprob": -2.0, "bytes": []},
    ]
    assert folded == desk.whole(RESPONSES, parsed, entries)


def test_progress_and_comments_are_lines_that_readers_skip(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, BODY)
    renderer = RESPONSES.stream(parsed)
    ours = parsed.requests[0].request_id
    assert renderer.render([PrefillProgress(ours, 0, 512, 2048)]) == b": prefill 512/2048\n\n"
    assert renderer.comment("loading\nweights 40%") == b": loading weights 40%\n\n"
    assert renderer.render([]) == b"" and renderer.answer is None


def test_a_failure_in_the_middle_is_told_and_ends_the_response_as_failed(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, BODY)
    renderer = RESPONSES.stream(parsed)
    ours = parsed.requests[0].request_id
    failed = Failed(ours, 1, "runner_lost", "the runner was lost; try again", Usage(), {})
    stream = renderer.open() + renderer.render(
        [*desk.text(parsed, "a"), failed, *desk.text(parsed, "late")]
    )
    assert renderer.ended
    assert renderer.close() == b"" and renderer.comment("x") == b""
    assert renderer.render(desk.text(parsed, "later")) == b""
    *_, done, error, last = _events(stream)
    assert done["type"] == "response.output_item.done" and done["item"]["status"] == "incomplete"
    assert error["type"] == "error"
    assert (error["code"], error["message"]) == ("runner_lost", "the runner was lost; try again")
    assert error["error"]["type"] == "service_unavailable_error"
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"] == {
        "code": "server_error",
        "message": "the runner was lost; try again",
    }
    assert last["response"]["output"] == [done["item"]]
    assert b"late" not in stream
    assert renderer.answer is not None and json.loads(renderer.answer) == last["response"]


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (400, "context_length_exceeded", "context_length_exceeded"),
        (400, "invalid_value", "invalid_prompt"),
        (429, "queue_full", "rate_limit_exceeded"),
        (503, "model_loading", "server_error"),
    ],
)
def test_an_error_before_the_first_event_still_begins_and_ends_the_stream_once(
    desk: Any, status: int, code: str, told: str
) -> None:
    renderer = RESPONSES.stream(desk.parse(RESPONSES, BODY))
    fault = faults.HttpFault(status, code, "no", field="input")
    events = _events(renderer.error(fault))
    assert [one["type"] for one in events] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]
    assert events[2]["code"] == code and events[2]["param"] == "input"
    assert events[3]["response"]["error"]["code"] == told
    assert renderer.error(fault) == b"" and renderer.close() == b""


def test_the_answer_to_keep_is_that_of_the_last_event(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, BODY)
    renderer = RESPONSES.stream(parsed)
    stream = renderer.open() + renderer.render([*desk.text(parsed, "a"), *desk.end(parsed)])
    assert renderer.answer is None
    stream += renderer.close()
    assert renderer.answer is not None
    assert json.loads(renderer.answer) == _read(stream)
