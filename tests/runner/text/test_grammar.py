from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import OutputFormat, ToolSpec
from runner.engine import GrammarSpec
from runner.text.families.call_forms import call_form
from runner.text.families.marked import SpanReader
from runner.text.families.spans import Call, Marks, Span
from runner.text.grammar import Calls, Grammars, ThinkFirst, open_matcher
from runner.text.grammar.forms import EXACT_INTEGER, narrowed
from runner.text.stops import automaton
from tests.harness.toy_tokenizer import random_output, toy_tokenizer

TOKENIZER = toy_tokenizer()
GRAMMARS = Grammars(TOKENIZER.guide, TOKENIZER.added_ids)
THINK = Marks("<think>", "</think>")
CALLS = Marks("<tool_call>", "</tool_call>")
FORM = call_form("json_tools", CALLS, "")
assert FORM is not None
CLOSING = [TOKENIZER._backend.token_to_id(letter) for letter in '"}]1']
WEATHER = ToolSpec(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"$ref": "#/$defs/unit"},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
        "$defs": {"unit": {"enum": ["C", "F"]}},
    },
)
CLOCK = ToolSpec(name='the "clock" ü')


def walk(spec: GrammarSpec, seed: int) -> str | None:
    """A random output under the grammar."""
    return random_output(TOKENIZER, spec, seed, closing=CLOSING)


def conforms(schema: dict[str, Any], value: Any) -> bool:
    """A naive reading of the few keywords that the strategy below uses."""
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(conforms(option, value) for option in schema["anyOf"])
    match schema["type"]:
        case "integer":
            whole = isinstance(value, int) and not isinstance(value, bool)
            return whole and schema["minimum"] <= value <= schema["maximum"]
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str) and len(value) <= schema["maxLength"]
        case "array":
            sized = isinstance(value, list) and len(value) <= schema["maxItems"]
            return sized and all(conforms(schema["items"], item) for item in value)
        case _:
            return (
                isinstance(value, dict)
                and set(schema["required"]) <= set(value) <= set(schema["properties"])
                and all(conforms(schema["properties"][key], value[key]) for key in value)
            )


def objects(children: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(["a", "b", "ü", 'q"']), children, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties) or ["a"])).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required & set(properties)),
                "additionalProperties": False,
            }
        )
    )


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.integers(-50, 50).map(lambda low: {"type": "integer", "minimum": low, "maximum": low + 30}),
    st.integers(1, 12).map(lambda most: {"type": "string", "maxLength": most}),
    st.lists(st.sampled_from(["red", 7, None, True]), min_size=1, unique_by=repr).map(
        lambda values: {"enum": values}
    ),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        objects(children),
        children.map(lambda items: {"type": "array", "items": items, "maxItems": 3}),
        st.lists(children, min_size=1, max_size=2).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=5,
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 2**32))
def test_whatever_is_sampled_under_a_schema_parses_and_conforms(
    schema: dict[str, Any], seed: int
) -> None:
    form = OutputFormat(kind="json_schema", json_schema=schema)
    spec = GRAMMARS.output(form, think=None, calls=None)
    assert spec is not None
    said = walk(spec, seed)
    assert said is not None
    assert conforms(schema, json.loads(said, strict=True)), said


def test_a_json_object_is_an_object_from_its_first_token_on() -> None:
    spec = GRAMMARS.output(OutputFormat(kind="json_object"), think=None, calls=None)
    assert spec is not None
    said = [text for seed in range(20) if (text := walk(spec, seed)) is not None]
    assert len(said) >= 5
    assert all(isinstance(json.loads(text), dict) and text[0] == "{" for text in said)


def spans(text: str, think: Marks | None = THINK) -> list[Any]:
    reader = SpanReader(
        think=think, calls=CALLS, parse=json.loads, opening="text", stops=automaton(())
    )
    made: list[Span | Call] = []
    for span in [*reader.feed(text), *reader.flush()]:
        begun = made[-1] if made else None
        if isinstance(span, Call) and span.name is None and isinstance(begun, Call):
            made[-1] = replace(begun, arguments=begun.arguments + span.arguments, end=span.end)
        else:
            made.append(span)
    return made


@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls_are_calls_with_arguments_that_fit_and_nothing_else(parallel: bool) -> None:
    calls = Calls(FORM, (WEATHER, CLOCK), parallel=parallel)
    spec = GRAMMARS.output(OutputFormat(), think=None, calls=calls)
    assert spec is not None
    names: set[str] = set()
    counts: set[int] = set()
    for seed in range(40):
        text = walk(spec, seed)
        if text is None:
            continue
        made = spans(text)
        assert made and all(isinstance(call, Call) for call in made), text
        for call in made:
            arguments = json.loads(call.arguments)
            if call.name == WEATHER.name:
                assert set(arguments) == {"city", "unit"} and arguments["unit"] in "CF"
        names |= {call.name for call in made}
        counts.add(len(made))
    assert names == {WEATHER.name, CLOCK.name}
    assert (max(counts) > 1) is parallel


def test_a_named_tool_is_the_only_one_called() -> None:
    calls = Calls(FORM, (WEATHER, CLOCK), only=CLOCK.name, parallel=False)
    spec = GRAMMARS.output(OutputFormat(), think=None, calls=calls)
    assert spec is not None
    made = [spans(text) for seed in range(10) if (text := walk(spec, seed)) is not None]
    assert made and all([call.name for call in each] == [CLOCK.name] for each in made)


def test_with_a_format_and_tools_the_output_is_either() -> None:
    calls = Calls(FORM, (WEATHER,), parallel=False, need="may")
    form = OutputFormat(kind="json_schema", json_schema={"type": "boolean"})
    spec = GRAMMARS.output(form, think=None, calls=calls)
    assert spec is not None
    said = {text for seed in range(30) if (text := walk(spec, seed)) is not None}
    assert {text for text in said if not text.startswith("<tool_call>")} <= {"true", "false"}
    assert any(text.startswith("<tool_call>") for text in said)


def test_a_strict_tool_that_may_be_called_leaves_the_text_around_its_calls_free() -> None:
    strict = WEATHER.model_copy(update={"strict": True})
    calls = Calls(FORM, (strict, CLOCK), parallel=True, need="may")
    spec = GRAMMARS.output(OutputFormat(), think=ThinkFirst(THINK, "text"), calls=calls)
    assert spec is not None
    good = '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "C"}}'
    bad = '{"name": "get_weather", "arguments": {"town": "Paris"}}'
    around = "<think>\nhm\n</think>\n\nLet me {look}: <tool\n"
    for body, fits in ((good, True), (bad, False)):
        tokens = TOKENIZER.encode(f"{around}<tool_call>\n{body}\n</tool_call> done. ünï 🐟")
        matcher = open_matcher(TOKENIZER.guide, spec)
        assert (matcher.validate_tokens(tokens) == len(tokens)) is fits
    for seed in range(10):
        for made in spans(walk(spec, seed) or ""):
            assert not isinstance(made, Call) or made.name in (WEATHER.name, CLOCK.name)


def test_thinking_may_come_first_and_must_be_closed_where_the_prompt_opened_it() -> None:
    form = OutputFormat(kind="json_schema", json_schema={"enum": ["yes"]})
    closing = [TOKENIZER.token_id("</think>")]
    for opening in ("text", "reasoning"):
        spec = GRAMMARS.output(form, think=ThinkFirst(THINK, opening), calls=None)
        assert spec is not None
        matcher = open_matcher(TOKENIZER.guide, spec)
        start = [TOKENIZER.token_id("<think>")] if opening == "text" else []
        words = TOKENIZER.encode('Hm, {"not": json} yet.\n')
        tokens = [*start, *words, *closing, *TOKENIZER.encode('\n\n"yes"')]
        assert matcher.consume_tokens([token for token in tokens if token is not None])
        assert matcher.is_accepting()
        straight = open_matcher(TOKENIZER.guide, spec)
        straight.consume_tokens(TOKENIZER.encode('"yes"'))
        assert straight.is_accepting() is (opening == "text")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "banana"}, "banana"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}, "uniqueItems"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"$ref": "https://example.com/schema"}, "example.com"),
        ({"$ref": "#/none"}, "'#/none' does not exist"),
        ({"type": "integer", "minimum": "3"}, "must be a number"),
        ({"type": "integer", "maximum": -(2**63)}, "are too large"),
        ({"patternProperties": {"^a": {}, "b$": {}}, "type": "object"}, "may both match"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "pattern": "^(a{1000}){1000}$"}, "too many"),
        ({"type": "string", "description": "x" * 70_000}, "too large"),
        ({"const": "\ud800"}, "cannot be enforced"),
        (None, "requires a schema"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_by_name(
    schema: dict[str, Any] | None, words: str
) -> None:
    form = OutputFormat(kind="json_schema", json_schema=schema)
    for _ in range(2):  # the second time from what is kept
        with pytest.raises(BadRequest, match=words) as refused:
            GRAMMARS.output(form, think=None, calls=None)
        assert refused.value.field == "response_format"
        assert not re.search("x-guidance|start:|%json|NoExt", str(refused.value)), "ours to know"


@pytest.mark.parametrize("name", ["password", "byte", "uri-reference", "int64", "of our own"])
def test_a_format_that_is_not_held_is_an_annotation(name: str) -> None:
    text = {"type": "string", "format": name}
    schema = {"type": "object", "properties": {"format": text, "a": {"allOf": [text]}}}
    assert accepts(schema, '{"format": "x", "a": "y"}') and not accepts(schema, '{"format": 1}')
    dated = {"type": "string", "format": "date"}
    assert accepts(dated, '"2026-11-28"') and not accepts(dated, '"x"'), "others are held"
    assert accepts({"const": {"format": name}}, json.dumps({"format": name}))


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds_of_64_bits_are_taken(kind: str) -> None:
    bounds = {"type": kind, "minimum": -(2**63), "maximum": 2**63 - 1}
    for schema in (bounds, {"allOf": [bounds]}, {"type": kind, "maximum": 2**64 - 1}):
        assert accepts(schema, "5") and not accepts(schema, str(10**20))
    assert accepts({"type": "string", "maxLength": 2**63 - 1}, '"x"')


def accepts(schema: dict[str, Any], text: str) -> bool:
    """Whether a text keeps to a schema, as it is held."""
    form = OutputFormat(kind="json_schema", json_schema=schema)
    spec = GRAMMARS.output(form, think=None, calls=None)
    assert spec is not None
    matcher = open_matcher(TOKENIZER.guide, spec)
    return matcher.consume_tokens(TOKENIZER.encode(text)) and matcher.is_accepting()


def test_a_schema_too_deep_is_refused_however_deep() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    form = OutputFormat.model_construct(kind="json_schema", json_schema=schema)
    with pytest.raises(BadRequest, match="too deep"):
        GRAMMARS.output(form, think=None, calls=None)


def test_only_a_strict_tool_is_refused_for_its_schema() -> None:
    odd: dict[str, Any] = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
    loose = ToolSpec(name="f", parameters=odd)
    spec = GRAMMARS.output(OutputFormat(), think=None, calls=Calls(FORM, (loose,), parallel=False))
    assert spec is not None
    strict = Calls(FORM, (WEATHER, loose.model_copy(update={"strict": True})), parallel=False)
    with pytest.raises(BadRequest, match="uniqueItems") as refused:
        GRAMMARS.output(OutputFormat(), think=None, calls=strict)
    assert refused.value.field == "tools[1].parameters"


def test_equal_formats_share_one_compilation_and_free_text_needs_none() -> None:
    form = OutputFormat(kind="json_schema", json_schema={"type": "integer"})
    first = GRAMMARS.output(form, think=None, calls=None)
    assert first is GRAMMARS.output(form, think=None, calls=None)
    may = Calls(FORM, (WEATHER,), parallel=True, need="may")
    assert GRAMMARS.output(OutputFormat(), think=None, calls=may) is None


def test_a_schema_is_narrowed_where_a_model_could_drift() -> None:
    plain: dict[str, Any] = {"type": "integer"}
    kept: dict[str, Any] = {"type": "integer", "minimum": 10**17}
    open_object: dict[str, Any] = {"type": "object", "properties": {}, "required": ["stranger"]}
    properties: dict[str, Any] = {"type": plain, "list": {"items": plain}, "big": kept}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {**properties, "open": open_object, "fixed": {"const": plain}},
    }
    bounded = {"type": "integer", "minimum": -EXACT_INTEGER, "maximum": EXACT_INTEGER}
    assert narrowed(schema) == {
        "type": "object",
        "properties": {
            "type": bounded,
            "list": {"items": bounded},
            "big": kept,
            "open": open_object,
            "fixed": {"const": plain},
        },
        "additionalProperties": False,
    }
