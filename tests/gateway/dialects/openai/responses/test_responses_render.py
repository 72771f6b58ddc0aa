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
from gateway.dialects.openai.responses import OpenAIResponses
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
    *("output", "error", "usage", "previous_response_id", "instructions", "tools", "tool_choice"),
    *("parallel_tool_calls", "text", "reasoning", "temperature", "top_p", "presence_penalty"),
    *("frequency_penalty", "top_logprobs", "max_output_tokens", "max_tool_calls", "truncation"),
    *("background", "store", "service_tier", "metadata", "user", "safety_identifier"),
    "prompt_cache_key",
}
NEVER_NULL = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"),
    *("truncation", "background", "service_tier", "tools", "tool_choice"),
)


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
            case "function_call_arguments.done":
                assert self.said == event["arguments"]
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
        self.output.append(item)
        self.item = self.said = None


def _read(stream: bytes) -> dict[str, Any]:
    reader = Reader()
    for event in _events(stream):
        reader.read(event)
    assert reader.last
    return reader.last


@given(st.data())
def test_stream_and_whole_say_the_same(desk: Any, answers: Callable[..., Any], data: Any) -> None:
    parsed = desk.parse(RESPONSES, BODY)
    entries: list[Entry] = data.draw(answers(parsed.requests[0]))
    batch = data.draw(st.integers(1, 7))
    folded = _read(desk.play(RESPONSES, parsed, entries, batch=batch))
    assert folded == desk.whole(RESPONSES, parsed, entries)
    assert set(folded) == KEYS
    assert all(folded[name] is not None for name in NEVER_NULL)
    published.Response.model_validate(folded)


@given(st.data())
def test_how_entries_are_batched_changes_no_byte(
    desk: Any, answers: Callable[..., Any], data: Any
) -> None:
    parsed = desk.parse(RESPONSES, BODY)
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


def _frame(kind: str, seq: int, rest: str) -> str:
    return f'event: {kind}\ndata: {{"type":"{kind}",{rest},"sequence_number":{seq}}}\n\n'


def _response(status: str, output: str, usage: str, *, cut: bool = False) -> str:
    """The bytes of a response to `BODY`, with `output` and `usage` as they are."""
    why = '{"reason":"max_output_tokens"}' if cut else "null"
    done = "1763640002" if status == "completed" else "null"
    return (
        '"response":{"id":"resp_req-n1-0-boot-0","object":"response","created_at":1763640000,'
        f'"completed_at":{done},"status":"{status}","incomplete_details":{why},'
        f'"model":"shoal-tiny","output":[{output}],"error":null,"usage":{usage},'
        '"previous_response_id":null,"instructions":null,"tools":[],"tool_choice":"auto",'
        '"parallel_tool_calls":true,"text":{"format":{"type":"text"},"verbosity":"medium"},'
        '"reasoning":{"effort":null,"summary":null},"temperature":1.0,"top_p":1.0,'
        '"presence_penalty":0.0,"frequency_penalty":0.0,"top_logprobs":0,'
        '"max_output_tokens":null,"max_tool_calls":null,"truncation":"disabled",'
        '"background":false,"store":true,"service_tier":"default","metadata":{},"user":null,'
        '"safety_identifier":null,"prompt_cache_key":null}'
    )


def _call(number: int, status: str, name: str, arguments: str) -> str:
    return (
        f'{{"id":"fc_req-n1-0-boot-0-{number}","type":"function_call","status":"{status}",'
        f'"call_id":"call_{number}","name":"{name}","arguments":"{arguments}"}}'
    )


def test_a_stream_of_thinking_text_and_two_calls_cut_in_the_second_byte_by_byte(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, BODY)
    entries = [
        *desk.reasoning(parsed, "hm", "m"),
        *desk.text(parsed, "Hel", "lo\u2028é"),
        *desk.call(parsed, 0, "look", '{"at"', ":1}"),
        *desk.call(parsed, 1, "wait", '{"s'),
        *desk.end(parsed, "length"),
    ]
    rs = '"item_id":"rs_req-n1-0-boot-0-0","output_index":0'
    msg = '"item_id":"msg_req-n1-0-boot-0-0","output_index":1'
    look = '"item_id":"fc_req-n1-0-boot-0-0","output_index":2'
    wait = '"item_id":"fc_req-n1-0-boot-0-1","output_index":3'
    thought = (
        '{"id":"rs_req-n1-0-boot-0-0","type":"reasoning","status":"%s","summary":[],"content":[%s]}'
    )
    spoken = (
        '{"id":"msg_req-n1-0-boot-0-0","type":"message","status":"%s","role":"assistant",'
        '"content":[%s]}'
    )
    empty = '{"type":"output_text","annotations":[],"logprobs":[],"text":""}'
    text = empty.replace('"text":""', '"text":"Hello\\u2028é"')
    thinking = '{"type":"reasoning_text","text":"hmm"}'
    called = ('{\\"at\\":1}', '{\\"s')
    output = [
        thought % ("completed", thinking),
        spoken % ("completed", text),
        _call(0, "completed", "look", called[0]),
        _call(1, "incomplete", "wait", called[1]),
    ]
    usage = json.dumps(USAGE, separators=(",", ":"))
    item, part = "response.output_item", "response.content_part"
    arguments = "response.function_call_arguments"
    assert desk.play(RESPONSES, parsed, entries).decode() == "".join(
        (
            _frame("response.created", 0, _response("in_progress", "", "null")),
            _frame("response.in_progress", 1, _response("in_progress", "", "null")),
            _frame(f"{item}.added", 2, f'"output_index":0,"item":{thought % ("in_progress", "")}'),
            _frame(
                f"{part}.added",
                3,
                rs + ',"content_index":0,"part":{"type":"reasoning_text","text":""}',
            ),
            _frame("response.reasoning_text.delta", 4, rs + ',"content_index":0,"delta":"hm"'),
            _frame("response.reasoning_text.delta", 5, rs + ',"content_index":0,"delta":"m"'),
            _frame("response.reasoning_text.done", 6, rs + ',"content_index":0,"text":"hmm"'),
            _frame(f"{part}.done", 7, f'{rs},"content_index":0,"part":{thinking}'),
            _frame(f"{item}.done", 8, f'"output_index":0,"item":{output[0]}'),
            _frame(f"{item}.added", 9, f'"output_index":1,"item":{spoken % ("in_progress", "")}'),
            _frame(f"{part}.added", 10, f'{msg},"content_index":0,"part":{empty}'),
            _frame(
                "response.output_text.delta",
                11,
                msg + ',"content_index":0,"delta":"Hel","logprobs":[]',
            ),
            _frame(
                "response.output_text.delta",
                12,
                msg + ',"content_index":0,"delta":"lo\\u2028é","logprobs":[]',
            ),
            _frame(
                "response.output_text.done",
                13,
                msg + ',"content_index":0,"text":"Hello\\u2028é","logprobs":[]',
            ),
            _frame(f"{part}.done", 14, f'{msg},"content_index":0,"part":{text}'),
            _frame(f"{item}.done", 15, f'"output_index":1,"item":{output[1]}'),
            _frame(
                f"{item}.added",
                16,
                f'"output_index":2,"item":{_call(0, "in_progress", "look", "")}',
            ),
            _frame(f"{arguments}.delta", 17, look + ',"delta":"{\\"at\\""'),
            _frame(f"{arguments}.delta", 18, look + ',"delta":":1}"'),
            _frame(f"{arguments}.done", 19, f'{look},"arguments":"{called[0]}"'),
            _frame(f"{item}.done", 20, f'"output_index":2,"item":{output[2]}'),
            _frame(
                f"{item}.added",
                21,
                f'"output_index":3,"item":{_call(1, "in_progress", "wait", "")}',
            ),
            _frame(f"{arguments}.delta", 22, wait + ',"delta":"{\\"s"'),
            _frame(f"{arguments}.done", 23, f'{wait},"arguments":"{called[1]}"'),
            _frame(f"{item}.done", 24, f'"output_index":3,"item":{output[3]}'),
            _frame(
                "response.incomplete",
                25,
                _response("incomplete", ",".join(output), usage, cut=True),
            ),
        )
    )


def test_an_answer_of_text_alone_is_complete_byte_by_byte(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, BODY)
    stream = desk.play(RESPONSES, parsed, [*desk.text(parsed, "ok"), *desk.end(parsed)])
    item = (
        '{"id":"msg_req-n1-0-boot-0-0","type":"message","status":"completed","role":"assistant",'
        '"content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"ok"}]}'
    )
    usage = json.dumps(USAGE, separators=(",", ":"))
    last = _frame("response.completed", 8, _response("completed", item, usage))
    assert stream.decode().endswith(last)


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
        desk.with_logprob(parsed, TokenLogprob(8, "b", -1.5, ((9, "c", -1.0),))),
        *desk.end(parsed),
    ]
    stream = desk.play(RESPONSES, parsed, entries)
    deltas = [one for one in _events(stream) if one["type"] == "response.output_text.delta"]
    assert [[one["token"] for one in delta["logprobs"]] for delta in deltas] == [["", "a"], ["b"]]
    folded = _read(stream)
    told = folded["output"][0]["content"][0]["logprobs"]
    assert [one["logprob"] for one in told] == [-0.5, -0.25, -1.5]
    assert told[2]["top_logprobs"] == [{"token": "c", "logprob": -1.0, "bytes": [99]}]
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
