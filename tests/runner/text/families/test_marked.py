from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.text.families.call_text import inside_json_string, read_calls, read_cut_call
from runner.text.families.marked import SpanReader
from runner.text.families.spans import Call, Marks, Span
from runner.text.prepared import SpanState
from runner.text.stops import automaton

THINK = Marks("<think>", "</think>")
CALLS = Marks("<tool_call>", "</tool_call>")
PARTS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {"a": 1}}',
    '{"name": "g", "arguments": {"s": "</tool_call>"}}',
    '{"name": broken',
    "\n",
    "\n\n",
    " ",
    "    x",
    "hello",
    "<",
    "<t",
    "ü",
    '"',
]


def reader(
    opening: SpanState = "text",
    think: Marks | None = THINK,
    calls: Marks | None = CALLS,
    stops: tuple[str, ...] = (),
) -> SpanReader:
    return SpanReader(
        think=think, calls=calls, parse=json.loads, opening=opening, stops=automaton(stops)
    )


def read(pieces: list[str], *, is_cut: bool = False, **settings: object) -> list[tuple[str, ...]]:
    """Kinds and texts, neighbours of one kind joined; offsets are checked on the way."""
    spans = reader(**settings)  # type: ignore[arg-type]
    text = "".join(pieces)
    made: list[tuple[str, ...]] = []
    reached = 0
    fed = [span for piece in pieces for span in spans.feed(piece)]
    for span in [*fed, *spans.flush(is_cut=is_cut)]:
        assert span.start >= reached or isinstance(span, Call)
        reached = span.end
        if isinstance(span, Call):
            if span.name is None:
                made[-1] = (*made[-1][:2], made[-1][2] + span.arguments)
            else:
                made.append(("call", span.name, span.arguments))
            continue
        assert text[span.start : span.end] == span.text
        if made and made[-1][0] == span.kind:
            made[-1] = (span.kind, made[-1][1] + span.text)
        else:
            made.append((span.kind, span.text))
    if spans.stop is not None:
        made.append(("stop", spans.stop))
    return made


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


TEXTS = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)
STOPS = st.lists(
    st.sampled_from(["\n", "\n\n", "hello", "lo<", "<t", "ü\n", " x", "}"]), max_size=3
).map(tuple)
PLACES = st.lists(st.integers(0, 400), max_size=20)


@pytest.mark.parametrize("opening", ["text", "reasoning"])
@pytest.mark.parametrize("think", [THINK, None])
@pytest.mark.parametrize("calls", [CALLS, None])
@given(text=TEXTS, places=PLACES, stops=STOPS)
def test_the_spans_do_not_depend_on_how_the_text_was_cut(
    opening: SpanState,
    think: Marks | None,
    calls: Marks | None,
    text: str,
    places: list[int],
    stops: tuple[str, ...],
) -> None:
    settings = {"opening": opening, "think": think, "calls": calls, "stops": stops}
    whole = read([text], **settings)
    assert read(cut(text, places), **settings) == whole
    assert read(list(text), **settings) == whole


def test_what_may_begin_a_stop_string_between_a_call_and_its_end_mark_keeps_its_place() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}'
    text = read([f"{call}ü</tool_call>"], stops=("ü\n",))
    assert text == [("call", "f", '{"a": 1}'), ("text", "ü")]
    assert read([f"{call}ü</tool_call>\nx"], stops=("ü\n",))[-1] != ("stop", "ü\n")


@given(TEXTS, PLACES)
def test_without_markers_to_read_the_text_comes_back_unchanged(
    text: str, places: list[int]
) -> None:
    said = read(cut(text, places), think=None, calls=None)
    assert "".join(part[1] for part in said) == text


@given(TEXTS)
def test_nothing_but_markers_and_layout_is_lost(text: str) -> None:
    """Every letter comes back: in text, in reasoning, or in a call."""
    said = "".join("".join(part[1:]) for part in read([text]))
    for word in ("hello", "ü", "x"):
        assert said.count(word) == text.count(word)
    assert said.count("broken") == text.count("broken")


WHOLE_CALL = '{"name": "f", "arguments": {"a": {"b": "}\\""}}}'


@pytest.mark.parametrize("length", range(len(WHOLE_CALL) + 1))
def test_a_call_that_the_limit_cut_off_is_a_call_as_far_as_it_goes_and_never_markup(
    length: int,
) -> None:
    said = read([f"so\n<tool_call>\n{WHOLE_CALL[:length]}"], is_cut=True)
    assert said[0] == ("text", "so")
    is_named = length >= WHOLE_CALL.index(",")
    assert [one[:2] for one in said[1:]] == ([("call", "f")] if is_named else [])
    for _, _, arguments in said[1:]:
        whole = '{"a": {"b": "}\\""}}'
        assert whole.startswith(arguments) and arguments
        if length >= len(WHOLE_CALL) - 1:
            assert arguments == whole


def test_arguments_are_told_as_they_come() -> None:
    """From the first name in them on; of a call that the model does not close, they are closed."""
    spans = reader()
    text = f"<tool_call>{WHOLE_CALL}</tool_call>"
    parts = [span for letter in text for span in spans.feed(letter) if isinstance(span, Call)]
    later = len(parts) - 1
    assert later > 10
    assert [one.name for one in parts] == ["f", *[None] * later]
    assert [one.goes_on for one in parts] == [*[True] * later, False]


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ('{"name": "f", "arguments": {"a": 1}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": [1, {"b": 2', '{"a": [1, {"b": 2}]}'),
        ('{"name": "f", "parameters": {"a": "x"}, "id": 3}', '{"a": "x"}'),
        ('{"name": "f", "arguments": {}}', "{}"),
    ],
)
def test_a_call_that_has_begun_as_json_is_one_though_its_end_is_amiss(
    raw: str, arguments: str
) -> None:
    assert read([f"<tool_call>{raw}</tool_call>\nx"]) == [("call", "f", arguments), ("text", "x")]


def test_what_stands_behind_a_call_before_its_end_marker_is_text() -> None:
    said = read(['<tool_call>{"name": "f", "arguments": {}} so</tool_call>'])
    assert said == [("call", "f", "{}"), ("text", " so")]


def test_a_call_that_the_model_ends_within_a_string_is_closed() -> None:
    assert read(['<tool_call>{"name": "f", "arguments": {"a": "b\\']) == [
        ("call", "f", '{"a": "b\\\\"}')
    ]


def test_calls_behind_one_another_between_one_pair_of_marks_are_all_read() -> None:
    one, other = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}'
    for apart in ("\n", ", ", ""):
        assert read([f"<tool_call>{one}{apart}{other}</tool_call>"]) == [
            ("call", "f", '{"a": 1}'), ("call", "g", "{}"),
        ]  # fmt: skip


@pytest.mark.parametrize("raw", ['"text"', "[1]", "1"])
def test_what_does_not_begin_as_an_object_does_is_no_call(raw: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {raw}}}</tool_call>'
    assert read([text]) == [("text", text)]


def test_what_is_no_json_is_given_back_though_the_limit_cut_it_off() -> None:
    spans = reader()
    said = [*spans.feed("The tag <tool_call> opens"), *spans.flush(is_cut=True)]
    assert "".join(one.text for one in said if isinstance(one, Span)) == "The tag <tool_call> opens"


@pytest.mark.parametrize(
    "raw",
    ['{"name": "f", "argu', '{"name": "f", "arguments": "{', '{"name": "f", "arguments": nul'],
)
def test_a_call_that_was_cut_off_before_its_arguments_is_not_one_without(raw: str) -> None:
    assert read_cut_call(raw) == ("f", "{")


@pytest.mark.parametrize("raw", ["", "{", '{"name": "f', '{"name": ""', '{"a": 1', '{"name": 5'])
def test_a_call_that_was_cut_off_before_its_name_is_none(raw: str) -> None:
    assert read_cut_call(raw) is None


def test_thinking_that_the_prompt_opened_ends_at_its_marker_without_blank_lines() -> None:
    text = "\nLet me see.\nYes.\n</think>\n\nThe answer is 4."
    assert read(list(text), opening="reasoning") == [
        ("reasoning", "Let me see.\nYes."),
        ("text", "The answer is 4."),
    ]


def test_thinking_that_the_model_opens_is_read_at_the_beginning_only() -> None:
    assert read(["<think>\n\n</think>\n\nHi"]) == [("text", "Hi")]
    assert read(["\n<think>a</think>b"]) == [("reasoning", "a"), ("text", "b")]
    assert read(["The tag <think> opens, </think> closes."]) == [
        ("text", "The tag <think> opens, </think> closes.")
    ]


def test_thinking_that_never_ends_is_all_reasoning() -> None:
    assert read(["<think>\nhmm", "\n"]) == [("reasoning", "hmm")]


def test_a_stop_string_ends_the_visible_text_at_once_even_if_it_is_white_space() -> None:
    spans = reader(stops=("\n\n", "lo"))
    assert spans.feed("hey \n") == [Span("text", "hey", 0, 3)]
    assert spans.feed("\nmore") == [Span("text", " ", 3, 4)]
    assert spans.stop == "\n\n"
    assert spans.feed("more") == spans.flush() == []
    first = reader(stops=("\n\n",))
    assert first.feed("\n\n") == []
    assert first.stop == "\n\n"


def test_white_space_that_might_begin_a_stop_string_does_not_hide_thinking() -> None:
    assert read(list("\n<think>a</think>b"), stops=("\n\n",)) == [("reasoning", "a"), ("text", "b")]


def test_thinking_calls_and_the_blank_lines_after_thinking_hold_no_stops() -> None:
    text = '<think>stop</think>\n\nA<tool_call>{"name": "stop"}</tool_call>\n\nB stop C'
    assert read(list(text), stops=("stop", "\n\n")) == [
        ("reasoning", "stop"),
        ("text", "A"),
        ("call", "stop", "{}"),
        ("text", "B "),
        ("stop", "stop"),
    ]


def test_indentation_after_thinking_is_content() -> None:
    assert read(["<think>a</think>\n\n    x = 1\n"], calls=None) == [
        ("reasoning", "a"),
        ("text", "    x = 1\n"),
    ]


def test_calls_are_read_and_the_layout_around_them_is_dropped() -> None:
    text = (
        "Let me look.\n"
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\n'
    )
    assert read(list(text)) == [
        ("text", "Let me look."),
        ("call", "f", '{"a": 1}'),
        ("call", "g", "{}"),
    ]


def test_an_end_marker_within_an_argument_does_not_end_the_call() -> None:
    raw = '{"name": "f", "arguments": {"s": "</tool_call> \\" </tool_call>"}}'
    assert read(list(f"<tool_call>{raw}</tool_call>")) == [
        ("call", "f", '{"s": "</tool_call> \\" </tool_call>"}')
    ]


@pytest.mark.parametrize(
    "raw",
    [
        "{broken",
        "[1]",
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f\\ud800", "arguments": {}}',
    ],
)
def test_a_malformed_call_comes_back_as_the_text_it_was(raw: str) -> None:
    text = f"So: <tool_call>{raw}</tool_call> done"
    assert read(list(text)) == [("text", text)]


DEEP = '{"a": ' * 5000 + "1" + "}" * 5000
LONG = "9" * 5000


@pytest.mark.parametrize(
    "raw",
    [
        f'{{"name": "f", "arguments": {{"n": {LONG}, "deep": {DEEP}}}}}',
        f'{{"arguments": {{"n": {LONG}, "deep": {DEEP}}}, "name": "f"}}',
    ],
)
def test_values_that_no_client_could_send_back_are_texts(raw: str) -> None:
    ((_, name, arguments),) = read([f"<tool_call>{raw}</tool_call>"])
    found = json.loads(arguments)
    assert (name, found["n"]) == ("f", LONG)
    levels = 0
    value: Any = found["deep"]
    while isinstance(value, dict):
        value, levels = value["a"], levels + 1
    assert levels < 58 and value.replace(" ", "") + "}" * levels in DEEP.replace(" ", "")


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call><tool_call>{WHOLE_CALL}</tool_call>",
        f"<tool_call>{WHOLE_CALL}</tool_call></tool_call>",
        f"<tool_call>\n<tool_call>\n{WHOLE_CALL}\n</tool_call>\n</tool_call>\n",
        f"<tool_call>{WHOLE_CALL}<tool_call>{WHOLE_CALL}</tool_call>",
    ],
)
def test_a_marker_of_a_call_that_stands_twice_or_is_missing_is_not_told(text: str) -> None:
    arguments = '{"a": {"b": "}\\""}}'
    assert read(list(text)) == [("call", "f", arguments)] * text.count(WHOLE_CALL)


def test_a_marker_of_thinking_that_stands_twice_is_not_told() -> None:
    text = "<think><think>\nhm</think></think>\n\nHi </think>"
    assert read(list(text)) == [("reasoning", "hm"), ("text", "Hi </think>")]


def test_a_call_that_the_output_breaks_off_in_comes_back_as_text() -> None:
    text = 'ok\n<tool_call>\n{"name": "f", "argu'
    assert read([text]) == [("text", text)]


def test_a_call_closed_by_the_end_of_the_output_is_read() -> None:
    marks = Marks("[CALL]", "")
    assert read(['hm [CALL]{"name": "f", "arguments": {}}'], calls=marks) == [
        ("text", "hm"),
        ("call", "f", "{}"),
    ]
    assert read(["hm [CALL]{nope"], calls=marks) == [("text", "hm [CALL]{nope")]


def test_arguments_are_always_the_json_text_of_an_object() -> None:
    assert read_calls('{"name": "f"}', json.loads) == [("f", "{}")]
    assert read_calls('{"name": "f", "arguments": null}', json.loads) == [("f", "{}")]
    assert read_calls('{"name": "f", "parameters": {"a": "ü"}}', json.loads) == [
        ("f", '{"a": "ü"}')
    ]
    assert read_calls('{"name": "f", "arguments": "{\\"a\\": 1}"}', json.loads) == [
        ("f", '{"a": 1}')
    ]
    assert read_calls('[{"name": "f"}, {"name": "g"}]', json.loads) == [("f", "{}"), ("g", "{}")]


def test_half_a_pair_of_surrogates_in_an_argument_is_no_character() -> None:
    ((_, arguments),) = read_calls('{"name": "f", "arguments": {"a": "\\ud800"}}', json.loads)
    assert arguments == '{"a": "\ufffd"}'


def test_within_a_json_string_or_not() -> None:
    assert inside_json_string('{"a')
    assert inside_json_string('{"a\\"')
    assert not inside_json_string('{"a"')
    assert not inside_json_string('function "a')


def test_a_span_says_where_it_stood() -> None:
    spans = reader().feed("Hi <tool_call>")
    assert spans == [Span("text", "Hi", 0, 2)]
