from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Entry, Failed, PrefillProgress, TokenDelta, TokenLogprob
from gateway.dialects import faults
from gateway.dialects.openai.chat import OpenAIChat
from tests.harness.sse_frames import FrameReader

CHAT = OpenAIChat()
BODY: dict[str, Any] = {
    "model": "shoal-tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
}
WITH_USAGE = {**BODY, "stream_options": {"include_usage": True}}


def _frames(stream: bytes) -> list[str]:
    return [frame.data for frame in FrameReader().feed(stream)]


def _chunks(stream: bytes) -> list[dict[str, Any]]:
    *frames, last = _frames(stream)
    assert last == "[DONE]"
    return [json.loads(frame) for frame in frames]


def _fold(chunks: list[dict[str, Any]], choice: int) -> dict[str, Any]:
    """A plain client: joins whatever fragments come for one choice."""
    made: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "roles": 0, "ends": []}
    for chunk in chunks:
        for one in chunk["choices"]:
            if one["index"] != choice:
                continue
            delta = one["delta"]
            made["roles"] += "role" in delta
            made["content"] += delta.get("content", "")
            made["reasoning"] += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", ()):
                kept = made["calls"].setdefault(call["index"], {"id": "", "name": "", "text": ""})
                kept["id"] += call.get("id", "")
                kept["name"] += call["function"].get("name", "")
                kept["text"] += call["function"]["arguments"]
            if one["finish_reason"] is not None:
                assert delta == {}
                made["ends"].append(one["finish_reason"])
    return made


@given(st.data())
def test_stream_and_whole_say_the_same(desk: Any, answers: Callable[..., Any], data: Any) -> None:
    asked = data.draw(st.sampled_from([WITH_USAGE, BODY]))
    parsed = desk.parse(CHAT, {**asked, "n": data.draw(st.integers(1, 3))})
    entries: list[Entry] = data.draw(answers(parsed.requests[0]))
    batch = data.draw(st.integers(1, 7))
    chunks = _chunks(desk.play(CHAT, parsed, entries, batch=batch))
    whole = desk.whole(CHAT, parsed, entries)
    for choice in whole["choices"]:
        folded = _fold(chunks, choice["index"])
        message = choice["message"]
        assert folded["roles"] == 1
        assert folded["content"] == (message["content"] or "")
        assert folded["reasoning"] == message.get("reasoning_content", "")
        assert folded["ends"] == [choice["finish_reason"]]
        assert list(folded["calls"].values()) == [
            {"id": call["id"], "name": call["function"]["name"],
             "text": call["function"]["arguments"]}
            for call in message.get("tool_calls", ())
        ]  # fmt: skip
    told = [chunk.get("usage") for chunk in chunks]
    assert told == [None] * (len(chunks) - 1) + [whole["usage"] if asked is WITH_USAGE else None]
    told = [chunk.get("timing") for chunk in chunks]
    assert told == [None] * (len(chunks) - 1) + [whole["timing"]]
    assert {chunk["id"] for chunk in chunks} == {whole["id"]}


@given(st.data())
def test_how_entries_are_batched_changes_no_byte(
    desk: Any, answers: Callable[..., Any], data: Any
) -> None:
    parsed = desk.parse(CHAT, WITH_USAGE)
    entries = data.draw(answers(parsed.requests[0]))
    one_by_one = desk.play(CHAT, parsed, entries)
    assert desk.play(CHAT, parsed, entries, batch=1000) == one_by_one


@given(st.data())
def test_the_official_types_accept_every_chunk_and_fold_them(
    desk: Any, answers: Callable[..., Any], data: Any
) -> None:
    parsed = desk.parse(CHAT, {**WITH_USAGE, "n": data.draw(st.integers(1, 2))})
    entries = data.draw(answers(parsed.requests[0]))
    state: Any = ChatCompletionStreamState()
    for chunk in _chunks(desk.play(CHAT, parsed, entries)):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    snapshot = state.current_completion_snapshot
    whole = desk.whole(CHAT, parsed, entries)
    official = ChatCompletion.model_validate(whole, strict=True)
    assert official.object == "chat.completion"
    for choice, folded in zip(official.choices, snapshot.choices, strict=True):
        assert (folded.message.content or "") == (choice.message.content or "")
        assert folded.finish_reason == choice.finish_reason
        ours = [
            call.model_dump(include={"id", "function"}) for call in choice.message.tool_calls or ()
        ]
        theirs = [call.model_dump() for call in folded.message.tool_calls or ()]
        assert [one["function"]["arguments"] for one in ours] == [
            one["function"]["arguments"] for one in theirs
        ]
        assert [one["id"] for one in ours] == [one["id"] for one in theirs]


@given(st.data())
def test_deltas_have_no_nulls_and_usage_comes_only_at_the_end(
    desk: Any, answers: Callable[..., Any], data: Any
) -> None:
    parsed = desk.parse(CHAT, WITH_USAGE)
    *chunks, last = _chunks(desk.play(CHAT, parsed, data.draw(answers(parsed.requests[0]))))
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert "usage" not in chunk
        [choice] = chunk["choices"]
        assert None not in choice["delta"].values()
        for call in choice["delta"].get("tool_calls", ()):
            assert None not in call.values()
            assert isinstance(call["index"], int)
            assert isinstance(call["function"]["arguments"], str)
    assert last["choices"] == []


def test_a_short_stream_byte_by_byte(desk: Any) -> None:
    parsed = desk.parse(CHAT, BODY)
    entries = [*desk.text(parsed, "Hel", "lo\u2028é"), *desk.end(parsed)]
    head = (
        'data: {"id":"chatcmpl-req-n1-0-boot-0","object":"chat.completion.chunk",'
        '"created":1763640000,"model":"shoal-tiny","system_fingerprint":"shoal-test",'
        '"choices":[{"index":0,"delta":{'
    )
    assert desk.play(CHAT, parsed, entries).decode() == (
        f'{head}"role":"assistant"}},"finish_reason":null}}]}}\n\n'
        f'{head}"content":"Hel"}},"finish_reason":null}}]}}\n\n'
        f'{head}"content":"lo\\u2028é"}},"finish_reason":null}}]}}\n\n'
        f'{head}}},"finish_reason":"stop"}}],"timing":{{"seconds":2.0,"queue_seconds":0.5,'
        '"prefill_seconds":0.25,"decode_seconds":1.25,"tokens_per_sec":3.5,'
        '"decode_tokens_per_sec":4.8}}\n\n'
        "data: [DONE]\n\n"
    )


@given(st.data())
def test_an_error_after_the_end_of_the_choices_leaves_every_end_told(
    desk: Any, answers: Callable[..., Any], data: Any
) -> None:
    parsed = desk.parse(CHAT, {**BODY, "n": data.draw(st.integers(1, 3))})
    *entries, _ = desk.number(data.draw(answers(parsed.requests[0])))
    renderer = CHAT.stream(parsed)
    stream = renderer.open() + renderer.render(entries)
    assert not renderer.ended
    stream += renderer.error(faults.internal("x")) + renderer.close()
    *chunks, error = _chunks(stream)
    assert "error" in error
    ends = [one for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
    assert sorted(one["index"] for one in ends) == list(range(parsed.choices))
    assert not any("timing" in chunk for chunk in chunks)


def test_a_choice_that_ends_twice_loses_no_chunk(desk: Any) -> None:
    parsed = desk.parse(CHAT, {**BODY, "n": 2})
    first, second, finished = desk.end(parsed, "cancelled")
    chunks = _chunks(desk.play(CHAT, parsed, [first, second, first, second, finished]))
    ends = [one["index"] for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
    assert ends == [0, 1, 0, 1]
    assert [("timing" in chunk) for chunk in chunks[-2:]] == [False, True]


def test_usage_is_left_out_unless_asked_for(desk: Any) -> None:
    parsed = desk.parse(CHAT, BODY)
    stream = desk.play(CHAT, parsed, [*desk.text(parsed, "a"), *desk.end(parsed)])
    assert all("usage" not in chunk and chunk["choices"] for chunk in _chunks(stream))


def test_usage_and_timing_are_told_in_full(desk: Any) -> None:
    parsed = desk.parse(CHAT, WITH_USAGE)
    last = _chunks(desk.play(CHAT, parsed, desk.end(parsed)))[-1]
    assert last["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert last["timing"] == {
        "seconds": 2.0,
        "queue_seconds": 0.5,
        "prefill_seconds": 0.25,
        "decode_seconds": 1.25,
        "tokens_per_sec": 3.5,
        "decode_tokens_per_sec": 4.8,
    }


def test_a_call_names_itself_once_and_then_sends_fragments(desk: Any) -> None:
    parsed = desk.parse(CHAT, BODY)
    entries = [*desk.call(parsed, 0, "f", '{"a"', ":1}"), *desk.end(parsed, "tool_calls")]
    deltas = [
        chunk["choices"][0]["delta"]["tool_calls"][0]
        for chunk in _chunks(desk.play(CHAT, parsed, entries))
        if "tool_calls" in chunk["choices"][0]["delta"]
    ]
    assert deltas == [
        {
            "index": 0,
            "id": "call_0",
            "type": "function",
            "function": {"name": "f", "arguments": ""},
        },
        {"index": 0, "function": {"arguments": '{"a"'}},
        {"index": 0, "function": {"arguments": ":1}"}},
    ]


def test_an_answer_of_calls_alone_has_null_content(desk: Any) -> None:
    parsed = desk.parse(CHAT, BODY)
    entries = [*desk.call(parsed, 0, "f", "{}"), *desk.end(parsed, "tool_calls")]
    [choice] = desk.whole(CHAT, parsed, entries)["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
    }
    assert choice["finish_reason"] == "tool_calls"


def test_logprobs_have_the_same_shape_streamed_or_not(desk: Any) -> None:
    parsed = desk.parse(CHAT, {**BODY, "logprobs": True, "top_logprobs": 2})
    token = TokenLogprob(5, "é", -0.25, ((5, "é", -0.25), (6, "\ufffd", float("-inf"))))
    entries = [desk.with_logprob(parsed, token), *desk.end(parsed)]
    wanted = {
        "content": [
            {
                "token": "é",
                "logprob": -0.25,
                "bytes": [0xC3, 0xA9],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.25, "bytes": [0xC3, 0xA9]},
                    {"token": "\ufffd", "logprob": -9999.0, "bytes": None},
                ],
            }
        ],
        "refusal": None,
    }
    chunks = _chunks(desk.play(CHAT, parsed, entries))
    assert chunks[1]["choices"][0]["logprobs"] == wanted
    assert chunks[1]["choices"][0]["delta"] == {"content": "é"}
    whole = desk.whole(CHAT, parsed, entries)
    assert whole["choices"][0]["logprobs"] == wanted
    ChatCompletion.model_validate(whole, strict=True)


def test_logprobs_are_null_when_not_asked_for(desk: Any) -> None:
    parsed = desk.parse(CHAT, BODY)
    whole = desk.whole(CHAT, parsed, [*desk.text(parsed, "a"), *desk.end(parsed)])
    assert whole["choices"][0]["logprobs"] is None


def test_a_failure_in_the_middle_is_told_and_the_stream_done(desk: Any) -> None:
    parsed = desk.parse(CHAT, WITH_USAGE)
    renderer = CHAT.stream(parsed)
    ours = parsed.requests[0].request_id
    failed = Failed(ours, 1, "runner_lost", "the runner was lost; try again", Usage(), {})
    stream = renderer.open() + renderer.render(
        [*desk.text(parsed, "a"), failed, *desk.text(parsed, "late")]
    )
    assert renderer.ended
    assert renderer.close() == b""
    assert renderer.comment("x") == b""
    assert renderer.render(desk.text(parsed, "later")) == b""
    *_, error, done = _frames(stream)
    assert done == "[DONE]"
    assert json.loads(error)["error"]["code"] == "runner_lost"
    assert b"late" not in stream


def test_an_error_from_outside_ends_the_stream_once(desk: Any) -> None:
    renderer = CHAT.stream(desk.parse(CHAT, BODY))
    fault = faults.internal("req-1")
    assert _frames(renderer.error(fault))[-1] == "[DONE]"
    assert renderer.error(fault) == b""
    assert renderer.close() == b""


def test_progress_and_comments_are_comments(desk: Any) -> None:
    parsed = desk.parse(CHAT, BODY)
    renderer = CHAT.stream(parsed)
    ours = parsed.requests[0].request_id
    assert renderer.render([PrefillProgress(ours, 0, 512, 2048)]) == b": prefill 512/2048\n\n"
    assert renderer.comment("loading\nweights 40%") == b": loading weights 40%\n\n"
    assert renderer.render([]) == b""


def test_a_flush_without_text_sends_nothing(desk: Any) -> None:
    parsed = desk.parse(CHAT, BODY)
    flush = TokenDelta(RequestId(parsed.requests[0].request_id), 0, 0, "text", "", 0)
    assert CHAT.stream(parsed).render([flush]) == b""


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("stop", {"finish_reason": "stop"}),
        ("length", {"finish_reason": "length"}),
        ("tool_calls", {"finish_reason": "tool_calls"}),
        ("cancelled", {"finish_reason": "stop", "stop_reason": "cancelled"}),
        ("memory_pressure", {"finish_reason": "length", "stop_reason": "memory_pressure"}),
    ],
)
def test_finish_reasons_are_words_of_the_dialect(
    desk: Any, reason: str, shown: dict[str, str]
) -> None:
    parsed = desk.parse(CHAT, BODY)
    chunks = _chunks(desk.play(CHAT, parsed, desk.end(parsed, reason)))
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, **shown}


def test_functions_are_called_in_the_older_form(desk: Any) -> None:
    parsed = desk.parse(CHAT, {**BODY, "functions": [{"name": "look"}]})
    entries = [*desk.call(parsed, 0, "look", '{"at"', ":1}"), *desk.end(parsed, "tool_calls")]
    [choice] = desk.whole(CHAT, parsed, entries)["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["content"] is None and "tool_calls" not in choice["message"]
    assert choice["message"]["function_call"] == {"name": "look", "arguments": '{"at":1}'}
    ChatCompletion.model_validate(desk.whole(CHAT, parsed, entries))
    chunks = _chunks(desk.play(CHAT, parsed, entries))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    told = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert "".join(one["arguments"] for one in told) == '{"at":1}'
    assert [one.get("name") for one in told] == ["look", *[None] * (len(told) - 1)]
    assert all("name" not in one for one in told[1:])
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"
    assert not any("tool_calls" in delta for delta in deltas)
    cut = [*desk.call(parsed, 0, "look", '{"at"'), *desk.end(parsed, "length")]
    assert desk.whole(CHAT, parsed, cut)["choices"][0]["finish_reason"] == "length"
