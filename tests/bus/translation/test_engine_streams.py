"""Streams of an engine of the cluster: texts, log-probabilities and ends become entries, and no
stream raises anything but the room's own errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.translation import (
    BrokenStream,
    Filtered,
    ServerKind,
    Target,
    ToldInPassing,
    error_message,
    events_in,
    hearing_of,
)
from bus.wire.data_frames import pack_to_gateway
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    ChoiceEnd,
    Entry,
    Finished,
    StepEntries,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
)

REQUEST = RequestId("req-n-h0-b-1")
VLLM = Target(model="m", kind="openai", name="the engine vllm", completes=True)
CLAUDE = Target(model="m", kind="anthropic", name="the provider 'claude'")
CLOUD = Target(model="m", kind="openai", name="the provider 'cloud'")


def frames(*events: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


def heard(lines: bytes, target: Target = VLLM, choices: int = 1) -> list[Entry]:
    hearing, entries = hearing_of(target, REQUEST, choices), list[Entry]()
    for event in events_in(lines, target.name):
        entries += hearing.take(event)
    return [*entries, *hearing.end(Usage())]


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, **more}]}


def raw(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, **more}]}


def scored(token: str, logprob: float, *others: tuple[str, float]) -> dict[str, Any]:
    top = [{"token": text, "logprob": value, "bytes": None} for text, value in others]
    return {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": top}


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_raw_text_survives_the_way(pieces: list[str]) -> None:
    entries = heard(frames(*map(raw, pieces), raw("", finish_reason="length", stop_reason=None)))
    texts = [entry.text for entry in entries if isinstance(entry, TokenDelta)]
    assert texts == pieces
    assert entries[-2:] == [
        ChoiceEnd(REQUEST, len(pieces), 0, "length", None),
        Finished(REQUEST, len(pieces) + 1, Usage()),
    ]


def test_a_stop_string_is_reported_and_a_stop_token_is_not() -> None:
    for reason, stop in (("END", "END"), (151645, None)):
        *_, end, _last = heard(frames(raw("a"), raw("", finish_reason="stop", stop_reason=reason)))
        assert isinstance(end, ChoiceEnd) and end.stop == stop


def test_log_probabilities_of_a_chat_come_with_their_text_and_ids() -> None:
    content = [scored("Hel", -0.1, ("Hel", -0.1), ("He", -2.0)), scored("lo", -0.5)]
    chunk = chat("Hello", logprobs={"content": content}, token_ids=[7, 8])
    (delta, *_) = heard(frames(chunk, chat("", finish_reason="stop")))
    assert isinstance(delta, TokenDelta) and (delta.text, delta.tokens) == ("Hello", 2)
    assert delta.logprobs == (
        TokenLogprob(7, "Hel", -0.1, ((-1, "Hel", -0.1), (-1, "He", -2.0))),
        TokenLogprob(8, "lo", -0.5, ()),
    )


def test_log_probabilities_of_a_raw_prompt_are_sorted_and_have_no_ids() -> None:
    shown = {
        "tokens": ["a", "b"],
        "token_logprobs": [-3.0, None],
        "top_logprobs": [{"a": -3.0, "c": -0.1}, None],
        "text_offset": [0, 1],
    }
    (delta, *_) = heard(frames(raw("ab", logprobs=shown), raw("", finish_reason="stop")))
    assert isinstance(delta, TokenDelta)
    assert delta.logprobs == (
        TokenLogprob(-1, "a", -3.0, ((-1, "c", -0.1), (-1, "a", -3.0))),
        TokenLogprob(-1, "b", -9999.0, ()),
    )


def test_a_token_without_text_keeps_its_log_probability_in_the_last_channel() -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]}
    silent = chat("", logprobs={"content": [scored("\ufffd", -0.2)]})
    (_, delta, *_) = heard(frames(thought, silent, chat("", finish_reason="stop")))
    assert isinstance(delta, TokenDelta)
    assert (delta.channel, delta.text, len(delta.logprobs)) == ("reasoning", "", 1)


def test_tokens_without_text_inside_a_tool_call_leave_it_open() -> None:
    shown = {"content": [scored("x", -0.1)]}

    def part(**call: Any) -> dict[str, Any]:
        delta = {"tool_calls": [{"index": 0, **call}]}
        return {"choices": [{"index": 0, "delta": delta, "logprobs": shown}]}

    begin = part(id="c0", function={"name": "f", "arguments": '{"a"'})
    rest, silent = part(function={"arguments": ":1}"}), chat("", logprobs=shown)
    events = [begin, silent, rest, chat("", finish_reason="tool_calls", logprobs=shown)]
    entries = heard(frames(*events))
    assert not any(isinstance(entry, TokenDelta) for entry in entries)
    calls = [entry for entry in entries if isinstance(entry, ToolCallDelta)]
    assert "".join(entry.arguments for entry in calls) == '{"a":1}'
    assert {entry.call for entry in calls} == {0}


def test_a_provider_s_log_probabilities_and_raw_texts_are_not_read() -> None:
    chunk = chat("a", logprobs={"content": [scored("a", -0.1)]})
    chunk["choices"][0]["text"] = "b"
    (delta, end, _) = heard(frames(chunk, chat("", finish_reason="stop", stop_reason="x")), CLOUD)
    assert isinstance(delta, TokenDelta) and (delta.text, delta.logprobs) == ("a", ())
    assert isinstance(end, ChoiceEnd) and end.stop is None


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([chat("a")], "stopped before the end"),
        ([chat("a", finish_reason="abort")], r"aborted its answer \(abort\)"),
        ([{"choices": [{"index": 1, "delta": {"content": "a"}}]}], "was not requested"),
        ([{"choices": [{"index": -1, "text": "a"}]}], "was not requested"),
    ],
)
def test_an_answer_that_is_not_whole_is_broken(events: Sequence[Any], text: str) -> None:
    with pytest.raises(BrokenStream, match=f"the engine vllm .*{text}"):
        heard(frames(*events))


def test_every_choice_of_an_engine_has_an_end() -> None:
    ends = [{"choices": [{"index": n, "text": "a", "finish_reason": "stop"}]} for n in (1, 0)]
    entries = heard(frames(*ends), choices=2)
    assert [entry.choice for entry in entries if isinstance(entry, ChoiceEnd)] == [1, 0]
    with pytest.raises(BrokenStream):
        heard(frames(ends[0]), choices=2)
    both = [entry for entry in heard(frames(ends[0]), CLOUD, 2) if isinstance(entry, ChoiceEnd)]
    assert [entry.choice for entry in both] == [1, 0]


def test_a_filter_is_named() -> None:
    with pytest.raises(Filtered, match=r"the engine vllm refused to answer \(content_filter\)"):
        heard(frames(chat("", finish_reason="content_filter")))


def test_arguments_before_a_call_are_broken() -> None:
    delta = {"type": "input_json_delta", "partial_json": "{}"}
    with pytest.raises(BrokenStream, match="before their tool call"):
        heard(frames({"type": "content_block_delta", "delta": delta}), CLAUDE)


def test_half_a_character_is_replaced() -> None:
    (delta, *_) = heard(b'data: {"choices":[{"text":"a\\ud83d","finish_reason":"stop"}]}\n\n')
    assert isinstance(delta, TokenDelta) and delta.text == "a?"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no memory", "code": 500}}, "no memory"),
        ({"error": "bad"}, "bad"),
        ({"error": {"message": 3}}, None),
        ({"choices": []}, None),
        ([1], None),
    ],
)
def test_the_message_of_a_failure_is_found(body: Any, message: str | None) -> None:
    assert error_message(body) == message


def test_raw_text_counts_until_the_usage_arrives() -> None:
    tracker = ToldInPassing(is_stream=True)
    tracker.passed(frames(raw("a"), raw("b"), raw("")))
    assert (tracker.usage.completion_tokens, tracker.whole) == (2, False)
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 2**70}
    tracker.passed(frames({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
    assert tracker.whole and (tracker.usage.prompt_tokens, tracker.spent()) == (5, 8)
    tracker.passed(frames({"choices": [], "usage": {"prompt_tokens": 2**70}}))
    assert tracker.usage.prompt_tokens == 5


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=3),
        st.sampled_from(["\ud800", "stop", "tool_use", "text_delta", "input_json_delta"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "type"]), inner)
    ),
    max_leaves=6,
)


def object_with(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return objects that have some of these fields, each with a fitting value or any other."""
    either = {name: st.one_of(field, values) for name, field in fields.items()}
    return st.fixed_dictionaries({}, optional=either)


tokens = object_with(
    token=st.text(max_size=2),
    logprob=st.floats(-20, 0),
    top_logprobs=st.lists(object_with(token=st.text(max_size=2)), max_size=2),
)
scores = object_with(
    content=st.lists(tokens, max_size=2),
    tokens=st.lists(values, max_size=3),
    token_logprobs=st.lists(values, max_size=3),
    top_logprobs=st.lists(st.dictionaries(st.text(max_size=2), values, max_size=2), max_size=3),
)
calls = object_with(
    index=st.integers(0, 1),
    id=st.sampled_from(["a", "b"]),
    function=object_with(name=st.just("f"), arguments=st.just("{}")),
)
chunks = object_with(
    choices=st.lists(
        object_with(
            index=st.just(0),
            text=st.text(max_size=2),
            delta=object_with(
                content=st.text(max_size=2),
                reasoning=st.text(max_size=2),
                tool_calls=st.lists(calls, max_size=2),
            ),
            finish_reason=st.sampled_from([None, "stop", "length"]),
            stop_reason=st.sampled_from([None, "x", 3]),
            logprobs=scores,
            token_ids=st.lists(st.integers(0, 9), max_size=3),
        ),
        max_size=2,
    ),
    usage=object_with(prompt_tokens=st.integers(0, 9)),
)
parts = object_with(
    type=st.sampled_from(
        ["content_block_start", "content_block_delta", "content_block_stop", "message_delta"]
    ),
    index=st.integers(0, 1),
    content_block=object_with(type=st.just("tool_use"), id=st.just("a"), input=values),
    delta=object_with(
        type=st.sampled_from(["text_delta", "input_json_delta"]),
        text=st.text(max_size=2),
        partial_json=st.just("{}"),
        stop_reason=st.just("end_turn"),
        stop_sequence=values,
    ),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(chunks, parts, values), max_size=5),
    st.sampled_from(["openai", "anthropic"]),
    st.booleans(),
)
def test_any_stream_becomes_frames_or_an_error_of_the_room(
    events: list[Any], kind: ServerKind, is_engine: bool
) -> None:
    target = Target("m", kind, "it", completes=is_engine and kind == "openai")
    lines, entries, tracker = frames(*events), list[Entry](), ToldInPassing(is_stream=True)
    hearing = hearing_of(target, REQUEST)
    tracker.passed(lines)
    try:
        for event in events_in(lines, target.name):
            error_message(event)
            entries += hearing.take(event)
        entries += hearing.end(tracker.usage)
    except (BrokenStream, Filtered):
        pass
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    assert all(entry.call >= 0 for entry in entries if isinstance(entry, ToolCallDelta))
    pack_to_gateway(StepEntries(0, tuple(entries)))
