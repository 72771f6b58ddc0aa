"""Choose a model's family by its chat template and its vocabulary.

Pure. The parsers that mlx-lm chooses are used first, because it has parsers for most families.
Other families are recognised here by the text of their templates.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from runner.text.families.call_forms import call_form
from runner.text.families.calls import (
    DEEPSEEK,
    KIMI,
    bare_json_calls,
    deepseek_calls,
    gemma_calls,
    json_calls,
    kimi_calls,
    mistral_calls,
)
from runner.text.families.family import Family, LibraryMarks, ParseWithTools
from runner.text.families.harmony import MARKERS, harmony
from runner.text.families.spans import Marks
from runner.text.families.tagged_calls import TAGGED, checked_parser, tagged_calls

_THINKING = {
    "think": Marks("<think>", "</think>"),
    "mistral": Marks("[THINK]", "[/THINK]"),
    "seed": Marks("<seed:think>", "</seed:think>"),
    "cohere": Marks("<|START_THINKING|>", "<|END_THINKING|>"),
}
"""Maps the name of a thinking parser in a `card.toml` to the marks around thinking."""
_OWN: Mapping[str, ParseWithTools] = {
    "kimi_k2": kimi_calls,
    "mistral": mistral_calls,
    "function_gemma": gemma_calls("<escape>"),
    "gemma4": gemma_calls('<|"|>'),
}
"""Maps mlx-lm's name of a tool call format to our own parser of that format. Our parsers lose no
text where mlx-lm's do."""
_BARE, _NONE = "llama", "none"
_LLAMA = ('"parameters": dictionary of argument name', "<|python_tag|>")
_CALLS: tuple[tuple[str, str, str, Marks, ParseWithTools], ...] = (
    ("deepseek", "<｜tool▁calls▁begin｜>", "deepseek",
     Marks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), deepseek_calls),
    ("nemotron", "<TOOLCALL>", "json_list", Marks("<TOOLCALL>", "</TOOLCALL>"), json_calls),
    ("cohere", "<|START_ACTION|>", "json_list",
     Marks("<|START_ACTION|>", "<|END_ACTION|>"), json_calls),
    ("phi4", "<|/tool_call|>", "json_list",
     Marks("<|tool_call|>", "<|/tool_call|>"), json_calls),
    ("granite", "<|tool_call|>", "json_list", Marks("<|tool_call|>", ""), json_calls),
    ("hermes", "<tool_call>", "json_calls", Marks("<tool_call>", "</tool_call>"), json_calls),
)  # fmt: skip
"""(card's name, text in templates, name of the form, marks, parser); the first row that matches the
template is used."""


@dataclass(frozen=True, slots=True)
class Parsers:
    """The parsers of calls and thinking that a model card names. An empty name means that the
    template and the vocabulary choose the parser; `none` means no parser."""

    calls: str = ""
    thinking: str = ""

    @property
    def library(self) -> str:
        """Return the name of the parser of calls if mlx-lm has a parser of that name; otherwise
        ""."""
        return "" if self.calls in (*(row[0] for row in _CALLS), _BARE, _NONE) else self.calls


FOUND = Parsers()


def family_of(
    template: str, vocabulary: Container[str], library: LibraryMarks, parsers: Parsers = FOUND
) -> Family:
    """Return the family of a model with this chat template ("" for none) and these tokens.

    Parsers that `parsers` names override the chosen ones. `library` is what mlx-lm detected, or the
    parser of mlx-lm that `parsers` names.
    """
    if parsers == FOUND and all(marker in vocabulary for marker in MARKERS):
        return harmony()
    think = library.think or _thinking(template, vocabulary)
    if parsers.thinking:
        think = _THINKING.get(parsers.thinking)
    behind = "" if think is None else _behind(think.end, template)
    if parsers.calls and not parsers.library:
        return replace(_named(parsers.calls, template), think=think, behind_thinking=behind)
    if library.calls is not None:
        inner = tuple(marker for marker in (*KIMI, *DEEPSEEK) if marker in vocabulary)
        form = call_form(library.format, library.calls, template)
        parse = _tolerant(library.format, library.parse)
        return Family(think, library.calls, library.format, parse, inner, behind, form)
    return replace(_calling(template), think=think, behind_thinking=behind)


def _tolerant(form: str | None, parse: ParseWithTools | None) -> ParseWithTools | None:
    """Return the parser of the tool calls of this format; None if there is no parser.

    Our own parser takes precedence. For calls between tags, our tolerant parser is tried first.
    Otherwise mlx-lm's parser is used, with a check that raises ValueError if its result would omit
    a word of the text.
    """
    if parse is None or (form or "") in _OWN:
        return _OWN.get(form or "")
    tagged = TAGGED.get(form or "")
    whole_parse = checked_parser(parse)
    if tagged is None:
        return whole_parse
    return lambda raw, tools: tagged_calls(tagged, raw, tools) or whole_parse(raw, tools)


def _behind(end: str, template: str) -> str:
    """Return the line breaks that the template writes between `end`, the mark after thinking, and
    the answer."""
    has_lines = any(end + lines in template for lines in (r"\n\n", "\n\n"))
    return "\n\n" if has_lines else ""


def _thinking(template: str, vocabulary: Container[str]) -> Marks | None:
    """Return the first known pair of marks around thinking of which both are tokens, or both occur
    in the template; None if there is no such pair."""
    for marks in _THINKING.values():
        are_tokens = marks.start in vocabulary and marks.end in vocabulary
        if are_tokens or (marks.start in template and marks.end in template):
            return marks
    return None


def _calling(template: str) -> Family:
    for _, written, form, marks, parse in _CALLS:
        if written in template:
            return _family(form, marks, parse, template)
    if any(words in template for words in _LLAMA):
        return _named(_BARE, template)
    return _named(_NONE, template)


def _named(parser: str, template: str) -> Family:
    """Return a family without thinking, whose calls have the format that the model card names. For
    an unknown name the family has no calls."""
    if parser == _BARE:
        return _family("bare_json", Marks("{", "", leads=True), bare_json_calls, template)
    for name, _, form, marks, parse in _CALLS:
        if name == parser:
            return _family(form, marks, parse, template)
    return Family(None, None, None, None)


def _family(form: str, marks: Marks, parse: ParseWithTools, template: str) -> Family:
    inner = DEEPSEEK if form == "deepseek" else ()
    return Family(None, marks, form, parse, inner, form=call_form(form, marks, template))
