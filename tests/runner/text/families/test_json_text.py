"""What is told of a call is JSON, whatever the model wrote, and may come back in a history."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    TextPart,
    ToolCall,
)
from runner.text.families import Marks, Span, object_of
from runner.text.families.json_text import ObjectText, sendable
from runner.text.families.marked import SpanReader
from runner.text.prepared import PreparedRequest
from runner.text.stops import automaton
from runner.text.text import Text
from tests.harness.toy_tokenizer import toy_tokenizer

ODD: list[tuple[str, Any]] = [
    ('{"a": "x\ty\nz"}', {"a": "x\ty\nz"}),
    ('{"a": "\\ud800"}', {"a": "\ufffd"}),
    ('{"a": "\\ud83d\\ude00 \\ude00\\ud83d\\n\\ud83d"}', {"a": "😀 \ufffd\ufffd\n\ufffd"}),
    ('{"a": "C:\\dir \\\'q\\\' \\u12"}', {"a": "C:\\dir 'q' \\u12"}),
    ('{"a": [1, 2,], "b": True, "c": None,}', {"a": [1, 2], "b": True, "c": None}),
    ('{"day": 2026-01-15, "n": NaN, "k": 007}', {"day": "2026-01-15", "n": "NaN", "k": "007"}),
    ('{"a": {b: [1}, "c": 2}', {"a": {"b": [1]}, "c": 2}),
    ("{\"a\": 1, 'b': 'c'}", {"a": 1, "b": "c"}),
    ('{"a": "open', {"a": "open"}),
    ('{"a": [1, {"b": 2', {"a": [1, {"b": 2}]}),
]


def told(pieces: list[str]) -> list[tuple[str, str]]:
    """What a client puts together of calls, and of text."""
    spans = SpanReader(
        think=None,
        calls=Marks("<tool_call>", "</tool_call>"),
        parse=json.loads,
        opening="text",
        stops=automaton(()),
    )
    found: list[tuple[str, str]] = []
    read = [one for piece in pieces for one in spans.feed(piece)]
    for one in [*read, *spans.flush()]:
        if isinstance(one, Span):
            found.append(("", one.text))
        elif one.name is not None:
            found.append((one.name, one.arguments))
        else:
            found[-1] = (found[-1][0], found[-1][1] + one.arguments)
    return found


@pytest.mark.parametrize(("arguments", "meant"), ODD)
def test_a_call_is_told_as_json_however_it_was_written(arguments: str, meant: Any) -> None:
    is_whole = arguments.endswith("}")
    for text in (
        f'<tool_call>{{"name": "f", "arguments": {arguments}{"}</tool_call>" if is_whole else ""}',
        f'<tool_call>{{"arguments": {arguments}, "name": "f"}}</tool_call>' if is_whole else "",
    ):
        for pieces in ([text], list(text)) if text else ():
            ((name, found),) = told(pieces)
            assert (name, json.loads(found)) == ("f", meant)
            found.encode()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(), VALUES, max_size=4), st.booleans(), st.lists(st.integers(1, 9)))
def test_json_stays_as_it_is_character_by_character(
    value: dict[str, Any], is_ascii: bool, cuts: list[int]
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    mended = ObjectText()
    found, left = "", text
    for cut in cuts:
        found, left = found + mended.take(left[:cut]), left[cut:]
    assert found + mended.take(left) == text
    assert mended.is_over and mended.missing() == ""


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from('ab\\"u0d8{}[],:\t\n \ud800é-.1t')), st.integers(0, 20))
def test_an_object_that_has_begun_is_told_as_json_whatever_comes(noise: str, cut: int) -> None:
    mended = ObjectText()
    text = '{"a": "' + noise
    pieces = mended.take(text[:cut]) + mended.take(text[cut:])
    whole = pieces + mended.missing()
    whole.encode()
    assert pieces == ObjectText().take(text)
    assert isinstance(json.loads(whole), dict)


@pytest.mark.parametrize(("arguments", "meant"), ODD)
def test_arguments_of_a_history_are_read_as_they_were_told(arguments: str, meant: Any) -> None:
    assert object_of(arguments) == meant


@pytest.mark.parametrize("arguments", [odd for odd, _ in ODD])
def test_a_conversation_goes_on_whatever_its_calls_look_like(arguments: str) -> None:
    messages = (
        ChatMessage(role="user", parts=(TextPart(text="Hi"),)),
        ChatMessage(
            role="assistant",
            tool_calls=(ToolCall(call_id="c", name="f", arguments=arguments),),
        ),
        ChatMessage(role="tool", parts=(TextPart(text="done"),), tool_call_id="c"),
    )
    asked = GenerationRequest(
        request_id=RequestId("r"), model=ModelId("m"), prompt=ChatPrompt(messages=messages)
    )
    found = Text(toy_tokenizer()).prepare(asked, 4096)
    assert isinstance(found, PreparedRequest), found


def test_three_dots_within_a_value_stay_three_dots() -> None:
    assert sendable({"steps": ["first", ...]}) == {"steps": ["first", "..."]}
