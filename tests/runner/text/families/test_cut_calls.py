"""A call that the limit cut off is a call as far as it goes, in every family's form: never markup,
and never one that a client would take for whole."""

from __future__ import annotations

import importlib
import json

import pytest

from runner.text.families import LibraryMarks, Marks, family_of
from runner.text.families.spans import Call, Span
from runner.text.stops import automaton

PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
WHOLE = {"city": "Paris", "days": 3}
FORMS = {
    "glm47": "get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n",
    "longcat": "get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
    "<longcat_arg_value>Paris</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
    "<longcat_arg_value>3</longcat_arg_value>\n",
    "qwen3_coder": "\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n",
    "minimax_m2": '\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n',
    "kimi_k2": "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Paris", "days": 3}<|tool_call_end|>',
    "mistral": 'get_weather[ARGS]{"city": "Paris", "days": 3}',
    "function_gemma": "call:get_weather{city:<escape>Paris<escape>,days:3}",
    "gemma4": 'call:get_weather{city:<|"|>Paris<|"|>,days:3}',
    "pythonic": '[get_weather(city="Paris", days=3)]',
}
LISTED = '[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]'


def read(form: str, inner: str, *, is_cut: bool) -> tuple[str, list[tuple[str, str]]]:
    """What the library's parser of that form makes of a call of which `inner` is there."""
    library = importlib.import_module(f"mlx_lm.tool_parsers.{form}")
    marks = Marks(library.tool_call_start, library.tool_call_end)
    family = family_of("", (), LibraryMarks(None, marks, form, library.parse_tool_call))
    found: list[list[Span | Call]] = []
    text = marks.start + inner + ("" if is_cut else marks.end)
    for pieces in ([text], list(text)):
        reader = family.reader(
            TOOLS,
            reads_thinking=True,
            reads_tools=True,
            opening="text",
            stops=automaton(()),
        )
        spans = [span for piece in pieces for span in reader.feed(piece)]
        found.append([*spans, *reader.flush(is_cut=is_cut)])
    told = [_told(spans) for spans in found]
    assert told[0] == told[1], "however the text was cut into pieces"
    return told[0]


def _told(spans: list[Span | Call]) -> tuple[str, list[tuple[str, str]]]:
    said = "".join(span.text for span in spans if isinstance(span, Span))
    calls: list[tuple[str, str]] = []
    for call in spans:
        if isinstance(call, Call) and call.name is not None:
            calls.append((call.name, call.arguments))
        elif isinstance(call, Call):
            calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    return said, calls


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_call_is_no_markup_and_is_not_taken_for_whole(form: str) -> None:
    inner = FORMS[form]
    said, [(name, arguments)] = read(form, inner, is_cut=False)
    assert (said, name, json.loads(arguments)) == ("", "get_weather", WHOLE)
    for length in range(len(inner)):
        said, calls = read(form, inner[:length], is_cut=True)
        assert said == "", length
        named = [name for name, _ in calls]
        assert named in ([], ["get_weather"]), length
        for _, arguments in calls:
            whole = arguments != "{" and json.loads(arguments) == WHOLE
            assert whole or arguments == "{", (length, arguments)
        if "3" in inner[:length]:
            assert named, length


def test_a_cut_list_of_calls_has_the_first_as_far_as_it_goes() -> None:
    for length in range(len(LISTED)):
        said, calls = read("mistral", LISTED[:length], is_cut=True)
        assert said == "", length
        is_named = length >= LISTED.index(", ")
        assert [name for name, _ in calls] == (["get_weather"] if is_named else []), length


@pytest.mark.parametrize("form", FORMS)
def test_a_marker_that_is_spoken_of_stays_text(form: str) -> None:
    said, calls = read(form, " opens what the model calls", is_cut=True)
    assert (said.endswith(" opens what the model calls"), calls) == (True, [])
