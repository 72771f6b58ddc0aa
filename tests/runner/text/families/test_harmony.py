from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    OutputFormat,
    TextPart,
    TextPrompt,
    ToolCall,
    ToolSpec,
)
from runner.engine import RowId, SampledToken
from runner.text.families.harmony import HEADER_CHARACTERS, MARKERS, HarmonyReader
from runner.text.families.spans import Call, Span
from runner.text.prepared import CallPiece, PreparedRequest, SpanState
from runner.text.stops import automaton
from runner.text.text import Text
from tests.harness.toy_tokenizer import HARMONY_TEMPLATE, toy_tokenizer

TURN = "<|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
PARTS = [
    *MARKERS, ANALYSIS, FINAL, CALL, TURN, " to=functions.g<|channel|>commentary json<|message|>",
    '{"a": 1}', '{"a', "hello", "\n", " ", "<", "<|", "ü",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)
PLACES = st.lists(st.integers(0, 400), max_size=20)


def read(
    pieces: list[str],
    *,
    opening: SpanState = "header",
    stops: tuple[str, ...] = (),
    reads_calls: bool = True,
    is_cut: bool = False,
) -> list[tuple[str, ...]]:
    """Kinds and texts, neighbours of one kind joined."""
    reader = HarmonyReader(opening=opening, stops=automaton(stops), reads_calls=reads_calls)
    spans = [span for piece in pieces for span in reader.feed(piece)]
    made: list[tuple[str, ...]] = []
    for span in [*spans, *reader.flush(is_cut=is_cut)]:
        if isinstance(span, Call) and span.name is None:
            made[-1] = (*made[-1][:2], made[-1][2] + span.arguments)
        elif isinstance(span, Call):
            made.append(("call", span.name or "", span.arguments))
        elif made and made[-1][0] == span.kind:
            made[-1] = (span.kind, made[-1][1] + span.text)
        else:
            made.append((span.kind, span.text))
    if reader.stop is not None:
        made.append(("stop", reader.stop))
    return made


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("opening", ["header", "text", "reasoning"])
@given(text=TEXTS, places=PLACES, stops=st.sampled_from([(), ("hello",), ("lo", "\n")]))
def test_what_is_read_does_not_depend_on_how_the_text_was_cut(
    opening: SpanState, is_cut: bool, text: str, places: list[int], stops: tuple[str, ...]
) -> None:
    settings: dict[str, Any] = {"opening": opening, "stops": stops, "is_cut": is_cut}
    whole = read([text], **settings)
    assert read(cut(text, places), **settings) == whole
    assert read(list(text), **settings) == whole


@given(TEXTS)
def test_no_marker_is_ever_shown(text: str) -> None:
    for said in read([text]):
        assert not any(marker in part for marker in MARKERS for part in said[1:])


def test_thinking_a_preamble_calls_and_the_answer_are_told_apart() -> None:
    said = (
        f"{ANALYSIS}They want the weather.<|end|>"
        f"{TURN}<|channel|>commentary<|message|>I look.<|end|>"
        f'{TURN}{CALL}{{"a": 1}}<|call|>'
        f'{TURN} to=functions.g<|channel|>commentary json<|message|>{{"b": "<x>"}}<|call|>'
        f"{TURN}{FINAL}Rain.<|return|>"
    )
    assert read([said]) == [
        ("reasoning", "They want the weather."),
        ("text", "I look."),
        ("call", "f", '{"a": 1}'),
        ("call", "g", '{"b": "<x>"}'),
        ("text", "Rain."),
    ]


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=look <|constrain|>json<|message|>",
        " to=look<|channel|>commentary json<|message|>",
        "<|channel|>analysis to=functions.look code<|message|>",
        "<|start|>assistant to=look<|message|>",
    ],
)
def test_a_call_need_not_say_that_its_tool_is_a_function(header: str) -> None:
    assert read([f'{header}{{"a": 1}}<|call|>']) == [("call", "look", '{"a": 1}')]


MESSAGES = [
    ("reasoning", f"{ANALYSIS}thoughtone thoughttwo", "thoughtone thoughttwo"),
    ("text", "<|channel|>commentary<|message|>preambleone", "preambleone"),
    ("call", '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "inner"}',
     "inner"),
    ("call", ' to=g<|channel|>commentary json<|message|>{"a": "other"}', "other"),
    ("text", f"{FINAL}answerone answertwo", "answerone answertwo"),
]  # fmt: skip
MARKED = re.compile("|".join(map(re.escape, MARKERS)))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4),
    st.integers(0, 60),
    st.booleans(),
    PLACES,
)
def test_a_marker_that_is_missing_or_doubled_loses_no_text(
    messages: list[tuple[str, str, str]], place: int, is_doubled: bool, places: list[int]
) -> None:
    said = f"<|end|>{TURN}".join(text for _, text, _ in messages) + "<|return|>"
    markers = [*MARKED.finditer(said)]
    marker = markers[place % len(markers)]
    instead = marker[0] * 2 if is_doubled else ""
    said = said[: marker.start()] + instead + said[marker.end() :]
    found = read(cut(said, places))
    told = " ".join(part for one in found for part in one[1:])
    assert [words for _, _, words in messages if words not in told] == []
    assert not MARKED.search(told)


def test_a_call_whose_end_is_the_end_of_the_output_is_read() -> None:
    assert read([f'{ANALYSIS}So.<|end|>{TURN}{CALL}{{"a": 1}}'])[-1] == ("call", "f", '{"a": 1}')
    assert read([f"{CALL}"])[-1] == ("call", "f", "{}")


@pytest.mark.parametrize("length", range(len('{"a": {"b": 1}}') + 1))
def test_a_call_that_the_limit_cut_off_has_what_there_is_of_its_arguments(length: int) -> None:
    arguments = '{"a": {"b": 1}}'[:length]
    assert read([CALL + arguments], is_cut=True) == [("call", "f", arguments or "{")]


def test_a_call_that_is_none_comes_back_as_its_text_and_without_tools_all_do() -> None:
    assert read([f"{CALL}no json<|call|>"]) == [("text", "no json")]
    assert read([f'{CALL}{{"a": 1}}<|call|>'], reads_calls=False) == [("text", '{"a": 1}')]
    built_in = "<|channel|>analysis to=python <|message|>print(1)<|call|>"
    assert read([built_in]) == [("reasoning", "print(1)")]


def test_an_answer_without_a_header_is_an_answer() -> None:
    assert read(["Hello there"]) == [("text", "Hello there")]
    long = "x" * (HEADER_CHARACTERS + 1)
    assert read([long]) == [("text", long)]
    assert read([f"{TURN}"]) == []


def test_stops_end_the_answer_and_not_the_thinking() -> None:
    said = f"{ANALYSIS}a stop here<|end|>{TURN}{FINAL}b stop c"
    assert read([said], stops=("stop",)) == [
        ("reasoning", "a stop here"), ("text", "b "), ("stop", "stop"),
    ]  # fmt: skip


def test_a_span_says_where_it_stood() -> None:
    reader = HarmonyReader(opening="header", stops=automaton(()), reads_calls=True)
    text = f"{ANALYSIS}one<|end|>{TURN}{FINAL}two"
    for span in [*reader.feed(text), *reader.flush()]:
        assert isinstance(span, Span) and text[span.start : span.end] == span.text


# --- through a tokenizer ---------------------------------------------------------------------

TOOL = ToolSpec(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
TOKENIZER = toy_tokenizer(HARMONY_TEMPLATE, MARKERS)
TEXT = Text(TOKENIZER)


def said(role: str, text: str, **fields: Any) -> ChatMessage:
    return ChatMessage(role=role, parts=(TextPart(text=text),), **fields)  # type: ignore[arg-type]


def prepared(prompt: Any = None, **fields: Any) -> PreparedRequest:
    found = TEXT.prepare(
        GenerationRequest(
            request_id=RequestId("r"),
            model="m",  # type: ignore[arg-type]
            prompt=prompt or ChatPrompt(messages=(said("user", "Hi"),), **fields.pop("chat", {})),
            **fields,
        ),
        4096,
    )
    assert isinstance(found, PreparedRequest), found
    return found


def prompt_of(found: PreparedRequest) -> str:
    return TOKENIZER.decode(found.tokens)


def pieces(found: PreparedRequest, output: str) -> list[tuple[str, ...]]:
    reader = TEXT.choice(found, 0)
    made: list[Any] = []
    for token in TOKENIZER.encode(output):
        made += reader.push(SampledToken(RowId(1), TokenId(token))).pieces
    made += reader.finish("stop").pieces
    joined: list[tuple[str, ...]] = []
    for piece in made:
        if isinstance(piece, CallPiece) and piece.name is None:
            joined[-1] = (*joined[-1][:2], joined[-1][2] + piece.arguments)
        elif isinstance(piece, CallPiece):
            joined.append(("call", piece.name or "", piece.arguments))
        elif joined and joined[-1][0] == piece.channel:
            joined[-1] = (piece.channel, joined[-1][1] + piece.text)
        else:
            joined.append((piece.channel, piece.text))
    return joined


def test_a_turn_begins_within_a_header_and_thinks_unless_told_otherwise() -> None:
    found = prepared()
    assert prompt_of(found).endswith(TURN)
    output = f"{ANALYSIS}hm<|end|>{TURN}{FINAL}hello"
    assert pieces(found, output) == [("reasoning", "hm"), ("text", "hello")]


def test_without_thinking_the_prompt_opens_the_answer() -> None:
    found = prepared(thinking=False)
    assert prompt_of(found).endswith(TURN + FINAL)
    assert pieces(found, "hello") == [("text", "hello")]


def test_calls_are_read_where_there_are_tools() -> None:
    found = prepared(chat={"tools": (TOOL,)}, thinking=False)
    assert prompt_of(found).endswith(TURN), "calls have headers of their own"
    assert pieces(found, f'{CALL}{{"a": 1}}') == [("call", "f", '{"a": 1}')]


@pytest.mark.parametrize("thinking", [True, False])
def test_a_grammar_holds_the_answer_and_leaves_the_thinking_free(thinking: bool) -> None:
    found = prepared(thinking=thinking, output=OutputFormat(kind="json_object"))
    assert found.grammar is not None
    assert prompt_of(found).endswith(ANALYSIS if thinking else FINAL)
    from runner.text.grammar import open_matcher

    matcher = open_matcher(TOKENIZER.guide, found.grammar)
    thought = f"so<|end|>{TURN}{FINAL}" if thinking else ""
    for token in TOKENIZER.encode(thought + '{"a": 1}'):
        assert matcher.consume_token(token), TOKENIZER.decode([token])
    expected = [("reasoning", "so")] if thinking else []
    assert pieces(found, thought + '{"a": 1}') == [*expected, ("text", '{"a": 1}')]


def test_a_turn_with_thinking_a_preamble_and_calls_goes_back_to_the_template() -> None:
    call = ToolCall(call_id="c", name="f", arguments='{"a": 1}')
    turn = said("assistant", "I look.", reasoning="They ask.", tool_calls=(call,))
    chat = ChatPrompt(messages=(said("user", "Hi"), turn, said("tool", "2", tool_call_id="c")))
    assert f"{ANALYSIS}They ask.\n\nI look.<|end|>" in prompt_of(prepared(chat))


def test_an_answer_that_is_continued_goes_on_as_an_answer() -> None:
    chat = ChatPrompt(messages=(said("user", "Hi"), said("assistant", "Once")), continue_final=True)
    found = prepared(chat)
    assert prompt_of(found).endswith(f"{FINAL}Once")
    assert pieces(found, " upon") == [("text", " upon")]


def test_a_raw_prompt_is_not_read_for_messages() -> None:
    assert pieces(prepared(TextPrompt(text="x")), f"{FINAL}y") == [("text", f"{FINAL}y")]
