from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mlx_lm import tool_parsers

from bus.models.cards import LIBRARY_TOOL_PARSERS, REASONING_PARSERS, TOOL_PARSERS
from runner.text.families import LibraryMarks, Parsers, family_of
from runner.text.families.harmony import MARKERS, HarmonyFamily
from runner.text.families.spans import Call, Marks, Span
from runner.text.stops import automaton

NOTHING = LibraryMarks()
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "g")
]
DEEPSEEK_OLD = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
    '```json\n{"a": 1}\n```<｜tool▁call▁end｜>\n'
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
DEEPSEEK = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
LISTED = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
ACTIONS = (
    '[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}},'
    ' {"tool_call_id": "1", "tool_name": "g", "parameters": {}}]'
)
LLAMA = '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}'
LLAMA_TEMPLATE = 'Respond with {"name": ..., "parameters": dictionary of argument name and value}'
FAMILIES = {
    "deepseek v3": ("<｜tool▁calls▁begin｜>", DEEPSEEK_OLD),
    "deepseek v3.1": ("<｜tool▁calls▁begin｜>", DEEPSEEK),
    "nemotron": ("<TOOLCALL>", f"<TOOLCALL>{LISTED}</TOOLCALL>"),
    "command r": ("<|START_ACTION|>", f"<|START_ACTION|>{ACTIONS}<|END_ACTION|>"),
    "phi 4": ("<|tool_call|> <|/tool_call|>", f"<|tool_call|>{LISTED}<|/tool_call|>"),
    "granite 3": ("<|tool_call|>", f"<|tool_call|>{LISTED}"),
    "hermes": ("<tool_call>", f"<tool_call>{LISTED}</tool_call>"),
    "llama 3": (LLAMA_TEMPLATE, LLAMA),
}  # fmt: skip


def read(template: str, text: str, *, is_cut: bool = False) -> list[tuple[str, ...]]:
    family = family_of(template, (), NOTHING)
    reader = family.reader(
        TOOLS, reads_thinking=True, reads_tools=True, opening="text", stops=automaton(())
    )
    spans: list[Span | Call] = []
    for letter in text:
        spans += reader.feed(letter)
    made: list[tuple[str, ...]] = []
    for span in [*spans, *reader.flush(is_cut=is_cut)]:
        if isinstance(span, Call) and span.name is None:
            made[-1] = (*made[-1][:2], made[-1][2] + span.arguments)
        elif isinstance(span, Call):
            made.append(("call", span.name or "", span.arguments))
        elif made and made[-1][0] == "text":
            made[-1] = ("text", made[-1][1] + span.text)
        else:
            made.append((span.kind, span.text))
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_two_calls_are_read_in_each_familys_own_form(family: str) -> None:
    template, text = FAMILIES[family]
    assert read(template, text) == [("call", "f", '{"a": 1}'), ("call", "g", "{}")]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama 3"])
def test_text_before_calls_is_text(family: str) -> None:
    template, text = FAMILIES[family]
    assert read(template, f"I look.\n{text}")[0] == ("text", "I look.")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_malformed_call_comes_back_as_the_text_it_was(family: str) -> None:
    template, text = FAMILIES[family]
    broken = text.replace('"a"', '"a').replace("▁sep｜>", "▁set｜>")
    assert read(template, broken) == [("text", broken)]


@pytest.mark.parametrize(
    "text",
    ['{"city": "Paris"}', '{"name": "h", "parameters": {}}', 'So: {"name": "f", "parameters": {}}',
     '{"city": "Par', "{", "[1, 2]"],
)  # fmt: skip
@pytest.mark.parametrize("is_cut", [False, True])
def test_bare_json_is_a_call_only_at_the_beginning_and_of_a_tool_that_was_given(
    text: str, is_cut: bool
) -> None:
    assert read(LLAMA_TEMPLATE, text, is_cut=is_cut) == [("text", text)]


def test_bare_json_that_the_limit_cut_off_is_a_call_once_its_name_is_known() -> None:
    text = '{"name": "f", "parameters": {"a": '
    assert read("<|python_tag|>", text, is_cut=True) == [("call", "f", '{"a": ')]


@pytest.mark.parametrize(
    ("template", "tokens", "marks"),
    [
        ("", ("<think>", "</think>"), Marks("<think>", "</think>")),
        ("<think> </think>", (), Marks("<think>", "</think>")),
        ("", ("[THINK]", "[/THINK]"), Marks("[THINK]", "[/THINK]")),
        ("", ("<seed:think>", "</seed:think>"), Marks("<seed:think>", "</seed:think>")),
        ("<think>", (), None),
        ("", (), None),
    ],
)
def test_thinking_is_marked_by_tokens_or_by_what_the_template_writes(
    template: str, tokens: tuple[str, ...], marks: Marks | None
) -> None:
    assert family_of(template, tokens, NOTHING).think == marks


def test_what_the_library_knows_comes_first() -> None:
    library = LibraryMarks(
        Marks("<a>", "</a>"), Marks("<b>", "</b>"), "own", lambda raw, tools: json.loads(raw)
    )
    family = family_of("<tool_call> <think> </think>", ("<think>", "</think>"), library)
    assert (family.think, family.calls, family.format) == (library.think, library.calls, "own")


def test_messages_with_channels_are_told_by_their_markers() -> None:
    assert isinstance(family_of("", MARKERS, NOTHING), HarmonyFamily)
    assert not isinstance(family_of("", MARKERS[1:], NOTHING), HarmonyFamily)


def test_what_a_card_names_goes_before_what_is_found() -> None:
    library = LibraryMarks(
        Marks("<a>", "</a>"), Marks("<b>", "</b>"), "own", lambda raw, tools: json.loads(raw)
    )
    for found in (library, NOTHING):
        named = family_of("<tool_call> <think> </think>", (), found, Parsers("nemotron", "mistral"))
        assert named.calls == Marks("<TOOLCALL>", "</TOOLCALL>")
        assert named.think == Marks("[THINK]", "[/THINK]")
        none = family_of("<tool_call> <think> </think>", (), found, Parsers("none", "none"))
        assert (none.think, none.calls) == (None, None)
    assert family_of("", MARKERS, library, Parsers("mistral")).calls == library.calls
    assert not isinstance(family_of("", MARKERS, NOTHING, Parsers("none")), HarmonyFamily)


def test_every_word_for_a_parser_means_one() -> None:
    folder = Path(tool_parsers.__file__).parent
    theirs = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert set(LIBRARY_TOOL_PARSERS) == theirs, "those of the mlx-lm that is installed"
    for word in TOOL_PARSERS:
        assert bool(Parsers(word).library) == (word in theirs), word
    for word in set(TOOL_PARSERS) - theirs - {"none"}:
        assert family_of("", (), NOTHING, Parsers(word)).calls is not None, word
    for word in REASONING_PARSERS:
        think = family_of("", (), NOTHING, Parsers(thinking=word)).think
        assert (think is None) == (word == "none"), word
