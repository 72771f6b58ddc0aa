"""Calls that are held to their schemas, in each family's own form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bus.wire.errors import BadRequest, Refusal
from bus.wire.ids import RequestId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    OutputFormat,
    TextPart,
    ToolSpec,
)
from runner.engine import GrammarSpec
from runner.text import ModelTokenizer
from runner.text.families.harmony import ANALYSIS, FINAL, TURN
from runner.text.families.harmony import MARKERS as CHANNELS
from runner.text.families.spans import Call
from runner.text.grammar import Calls, Grammars, open_matcher
from runner.text.prepared import PreparedRequest, SpanState
from runner.text.shapes import tool_objects
from runner.text.stops import automaton
from runner.text.text import Text
from tests.harness.toy_tokenizer import (
    HARMONY_TEMPLATE,
    TEMPLATE,
    random_output,
    save_toy,
    toy_tokenizer,
)

DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")  # fmt: skip
KIMI = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>")  # fmt: skip
GLM = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
WEATHER = ToolSpec(
    name="get_weather",
    strict=True,
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "at": {"type": "array", "items": {"$ref": "#/$defs/hour"}, "maxItems": 2},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
        "$defs": {"hour": {"type": "boolean"}},
    },
)
CLOCK = ToolSpec(name="clock", parameters={"type": "object", "properties": {}}, strict=True)
GOOD = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "P", "days": 2}}\n'
    "</tool_call>",
    "deepseek v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    '```json\n{"city": "P", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek v3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    '{"city": "P", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "kimi k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "P", "days": 2}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "P", "days": 2}',
    "mistral 7b": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "P", "days": 2}}]',
    "nemotron": '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "P", "days": 2}}]'
    "</TOOLCALL>",
    "command r": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", '
    '"parameters": {"city": "P", "days": 2}}]<|END_ACTION|>',
    "granite 3": '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "P", "days": 2}}]',
    "llama 3": '{"name": "get_weather", "parameters": {"city": "P", "days": 2}}',
    "qwen3 coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nP\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "glm 4.5": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>P</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "glm 4.7": "<tool_call>get_weather<arg_key>city</arg_key><arg_value>P</arg_value>"
    "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
    "minimax m2": '<minimax:tool_call>\n<invoke name="get_weather">\n'
    '<parameter name="city">P</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "gpt-oss": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "P", "days": 2}<|call|>',
}
"""One call of each family, as its models write it."""
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hermes": ("<tool_call>", ("<tool_call>", "</tool_call>")),
    "deepseek v3": ("<｜tool▁calls▁begin｜> ```json", DEEPSEEK),
    "deepseek v3.1": ("<｜tool▁calls▁begin｜>", DEEPSEEK),
    "kimi k2": ("<|tool_calls_section_begin|>", KIMI),
    "mistral": ("[TOOL_CALLS] [ARGS]", ("[TOOL_CALLS]", "[ARGS]")),
    "mistral 7b": ("[TOOL_CALLS]", ("[TOOL_CALLS]",)),
    "nemotron": ("<TOOLCALL>", ("<TOOLCALL>", "</TOOLCALL>")),
    "command r": ("<|START_ACTION|>", ("<|START_ACTION|>", "<|END_ACTION|>")),
    "granite 3": ("<|tool_call|>", ("<|tool_call|>",)),
    "llama 3": ("<|python_tag|>", ("<|python_tag|>",)),
    "qwen3 coder": ("<tool_call>\n<function=", ("<tool_call>", "</tool_call>")),
    "glm 4.5": ("<arg_key>", GLM),
    "glm 4.7": ("<arg_key>", GLM),
    "minimax m2": ("<minimax:tool_call>", ("<minimax:tool_call>", "</minimax:tool_call>")),
    "gpt-oss": ("", CHANNELS),
}
"""What a template of the family writes, and which marks are tokens."""


def opened(family: str) -> ModelTokenizer:
    written, markers = FAMILIES[family]
    if family == "gpt-oss":
        return toy_tokenizer(HARMONY_TEMPLATE, markers)
    shown = TEMPLATE.replace("<tool_call>", "<call>").replace("</tool_call>", "</call>")
    return toy_tokenizer("{# " + written + " #}" + shown, markers)


def walk(tokenizer: ModelTokenizer, spec: GrammarSpec, seed: int) -> str | None:
    """A random output under the grammar, hurrying to marks too."""
    closing = {tokenizer.token_id(letter) for letter in '"}]1>'} | set(tokenizer.added_ids.values())
    return random_output(tokenizer, spec, seed, closing=closing, limit=500)


def calls_of(tokenizer: ModelTokenizer, text: str, tools: tuple[ToolSpec, ...]) -> list[Any]:
    """The calls and texts that the family's own reader finds."""
    opening: SpanState = "header" if tokenizer.family.format == "harmony" else "text"
    reader = tokenizer.family.reader(
        tool_objects(tools),
        reads_thinking=True,
        reads_tools=True,
        opening=opening,
        stops=automaton(()),
    )
    made: list[Any] = []
    for span in [*reader.feed(text), *reader.flush()]:
        if isinstance(span, Call) and span.name is None:
            made[-1] = (made[-1][0], made[-1][1] + span.arguments)
        elif isinstance(span, Call):
            made.append((span.name, span.arguments))
        elif span.text.strip():
            made.append(span.text)
    return [(one[0], json.loads(one[1])) if isinstance(one, tuple) else one for one in made]


def spec_of(tokenizer: ModelTokenizer, **asked: Any) -> GrammarSpec | None:
    form = tokenizer.family.form
    assert form is not None
    calls = Calls(form, asked.pop("tools", (WEATHER, CLOCK)), asked.pop("parallel", True), **asked)
    return Grammars(tokenizer.guide, tokenizer.added_ids).output(
        OutputFormat(), think=None, calls=calls
    )


def fits(tokenizer: ModelTokenizer, spec: GrammarSpec, text: str) -> bool:
    matcher = open_matcher(tokenizer.guide, spec)
    tokens = tokenizer.encode(text)
    return matcher.consume_tokens(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("family", FAMILIES)
def test_required_calls_are_read_as_calls_that_keep_to_their_schemas(family: str) -> None:
    tokenizer = opened(family)
    spec = spec_of(tokenizer)
    assert spec is not None
    assert fits(tokenizer, spec, GOOD[family])
    assert not fits(tokenizer, spec, GOOD[family].replace("2", "0"))
    assert not fits(tokenizer, spec, "I look. " + GOOD[family])
    assert calls_of(tokenizer, GOOD[family], (WEATHER,)) == [
        ("get_weather", {"city": "P", "days": 2})
    ]
    names: set[str] = set()
    for seed in range(24):
        text = walk(tokenizer, spec, seed)
        if text is None:
            continue
        made = calls_of(tokenizer, text, (WEATHER, CLOCK))
        assert made and all(isinstance(one, tuple) for one in made), text
        for name, arguments in made:
            names.add(name)
            if name == "clock":
                assert arguments == {}, text
                continue
            assert {"city", "days"} <= set(arguments) <= {"city", "days", "unit", "at"}, text
            assert isinstance(arguments["city"], str) and len(arguments["city"]) <= 12
            assert arguments["days"] in range(1, 10) and arguments.get("unit", "C") in "CF"
            assert set(arguments.get("at", [])) <= {True, False}
    assert names == {"get_weather", "clock"}


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("llama 3",)])
def test_a_strict_tool_that_may_be_called_leaves_the_text_around_it_free(family: str) -> None:
    tokenizer = opened(family)
    spec = spec_of(tokenizer, need="may")
    assert spec is not None
    said, bad = "Let me look: <x> {ü}.", GOOD[family].replace("2", "0")
    if family == "gpt-oss":
        said = f"<|channel|>commentary<|message|>{said}<|end|>{TURN}"
        think = f"{ANALYSIS}{said}<|end|>{TURN}"
        assert not fits(tokenizer, spec, think + GOOD[family]), "it was not to think"
        said = ""
    assert fits(tokenizer, spec, said + GOOD[family])
    assert not fits(tokenizer, spec, said + bad)
    assert fits(tokenizer, spec, f"{FINAL}Rain." if family == "gpt-oss" else "Rain.")


def test_bare_json_that_may_be_a_call_is_not_told_from_an_answer() -> None:
    assert spec_of(opened("llama 3"), need="may") is None


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt-oss"])
def test_several_calls_are_made_only_where_they_may_be(family: str) -> None:
    tokenizer = opened(family)
    form = tokenizer.family.form
    assert form is not None
    for parallel in (True, False):
        spec = spec_of(tokenizer, tools=(CLOCK,), parallel=parallel)
        assert spec is not None
        said = (walk(tokenizer, spec, seed) for seed in range(30))
        several = (len(calls_of(tokenizer, one, (CLOCK,))) > 1 for one in said if one is not None)
        assert any(several) is parallel


@pytest.mark.parametrize(
    ("family", "schema", "field"),
    [
        ("qwen3 coder", {"type": "string", "pattern": "a+"}, "tools[0].parameters.properties.x"),
        ("qwen3 coder", {"type": ["string", "null"]}, "tools[0].parameters.properties.x"),
        ("qwen3 coder", {"type": "string", "enum": ["null"]}, "tools[0].parameters.properties.x"),
        ("minimax m2", {"anyOf": [{"type": "string"}]}, "tools[0].parameters.properties.x"),
        ("glm 4.7", {"type": "string", "enum": ["a<b"]}, "tools[0].parameters.properties.x"),
        ("glm 4.7", {"type": "array", "uniqueItems": True}, "tools[0].parameters"),
    ],
)
def test_what_tags_cannot_hold_is_refused_for_a_strict_tool_alone(
    family: str, schema: dict[str, Any], field: str
) -> None:
    tokenizer = opened(family)
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    strict = ToolSpec(name="f", parameters=parameters, strict=True)
    with pytest.raises(BadRequest) as refused:
        spec_of(tokenizer, tools=(strict,))
    assert refused.value.field == field
    spec = spec_of(tokenizer, tools=(strict.model_copy(update={"strict": False}),))
    assert spec is not None
    made = [text for seed in range(10) if (text := walk(tokenizer, spec, seed)) is not None]
    assert made and all(calls_of(tokenizer, text, (strict,))[0][0] == "f" for text in made)


def test_values_of_any_type_are_held_where_tags_hold_json() -> None:
    tokenizer = opened("glm 4.7")
    either = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}
    tool = ToolSpec(
        name="f",
        strict=True,
        parameters={"type": "object", "properties": {"x": either}, "required": ["x"]},
    )
    spec = spec_of(tokenizer, tools=(tool,))
    assert spec is not None
    text = "<tool_call>f<arg_key>x</arg_key><arg_value>{}</arg_value></tool_call>"
    for value, is_held in (("7", True), ("null", True), ("0", False), ('"7"', False)):
        assert fits(tokenizer, spec, text.format(value)) is is_held
        if is_held:
            expected = json.loads(value)
            assert calls_of(tokenizer, text.format(value), (tool,)) == [("f", {"x": expected})]


@pytest.mark.parametrize(
    ("family", "name"), [("mistral", "a.b"), ("kimi k2", "a b"), ("qwen3 coder", "a>b")]
)
def test_a_name_that_a_form_cannot_hold_is_refused(family: str, name: str) -> None:
    with pytest.raises(BadRequest, match="does not allow the name") as refused:
        spec_of(opened(family), tools=(ToolSpec(name=name),))
    assert refused.value.field == "tools[0].name"


def prepared(**fields: Any) -> PreparedRequest | Refusal:
    chat = ChatPrompt(
        messages=(
            ChatMessage(role="user", parts=(TextPart(text="Hi"),)),
            *fields.pop("more", ()),
        ),
        tools=(WEATHER,),
        continue_final="continues" in fields and fields.pop("continues"),
    )
    asked = GenerationRequest(request_id=RequestId("r"), model="m", prompt=chat, **fields)  # type: ignore[arg-type]
    return Text(opened("gpt-oss")).prepare(asked, 4096)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("must", [True, False])
@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_gpt_oss_thinks_before_a_held_call_or_answer_where_it_may(
    thinking: bool, must: bool, kind: str
) -> None:
    found = prepared(
        thinking=thinking,
        tool_choice={"mode": "required" if must else "auto"},
        output=OutputFormat(kind=kind),
    )
    assert isinstance(found, PreparedRequest) and found.grammar is not None
    assert (found.opening, found.reads_thinking) == ("header", True)
    tokenizer, spec = opened("gpt-oss"), found.grammar
    call, thought = GOOD["gpt-oss"], f"{ANALYSIS}So.<|end|>{TURN}"
    answer = f'{FINAL}{{"a": 1}}' if kind == "json_object" else f"{FINAL}Rain."
    assert fits(tokenizer, spec, call) and fits(tokenizer, spec, thought + call) is thinking
    assert fits(tokenizer, spec, answer) is not must
    assert not fits(tokenizer, spec, call.replace("2", "0"))
    assert not fits(tokenizer, spec, f'{FINAL}["a"]') or (kind == "text" and not must)


def test_gpt_oss_goes_on_with_an_answer_and_calls_nothing_in_it() -> None:
    more = (ChatMessage(role="assistant", parts=(TextPart(text="Once"),)),)
    refused = prepared(more=more, continues=True, tool_choice={"mode": "required"})
    assert isinstance(refused, Refusal) and refused.field == "tool_choice"
    free = prepared(more=more, continues=True)
    assert isinstance(free, PreparedRequest) and free.grammar is None
    assert free.unheeded == ("tools.strict",)


def test_a_mark_that_ends_a_call_may_end_the_output_too(tmp_path: Path) -> None:
    _, markers = FAMILIES["gpt-oss"]
    path = save_toy(tmp_path, markers=markers)
    config = json.loads((path / "config.json").read_text())
    call = opened("gpt-oss").token_id("<|call|>")
    (path / "config.json").write_text(json.dumps({**config, "eos_token_id": [2, 0, call]}))
    tokenizer = ModelTokenizer(path)
    spec = spec_of(tokenizer)
    assert spec is not None
    matcher = open_matcher(tokenizer.guide, spec)
    assert matcher.consume_tokens(tokenizer.encode(GOOD["gpt-oss"].removesuffix("<|call|>")))
    assert matcher.is_accepting()
    mask = matcher.compute_bitmask()
    assert call is not None and mask[call // 8] >> (call % 8) & 1
