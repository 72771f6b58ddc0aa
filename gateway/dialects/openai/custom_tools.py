"""Tools whose input is text and no JSON object: their shapes, and that text in a call's arguments.

Pure. A model is given such a tool as a function with one text, `input`, and its call is told back
as the tool's own. A grammar is told to the model in the description; text is not held to it, and
the format is named as ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from bus.wire.messages.requests import ToolSpec
from gateway.dialects.body import Closed, Unused, by_field, honoured, no_effect
from gateway.dialects.dialect import Parsed

NAME = r"^[A-Za-z0-9_.:-]{1,128}$"
NOT_HELD = "the model sees a tool's grammar, but it is not enforced"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Of the function that a model is given."""
_TOLD = "custom:"
_TOLD_ALONE = "a grammar is shown to the model, not enforced, and named as ignored"
_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*"
)
"""The part of a JSON string that later letters cannot change: both halves of a pair, or none."""
_LOOSE = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')

# --- shapes -------------------------------------------------------------------------------


class CustomTextFormatBody(Closed):
    """Any text."""

    type: Literal["text"]


class CustomRuleBody(Closed):
    """A grammar; told to the model."""

    syntax: Literal["lark", "regex"]
    definition: str = Field(min_length=1)


class CustomGrammarBody(Closed):
    """Text of a grammar."""

    type: Literal["grammar"]
    grammar: CustomRuleBody


class CustomBody(Closed):
    """What a tool that takes text is called, and what for."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    format: (
        Annotated[
            Annotated[CustomTextFormatBody, Tag("~text")]
            | Annotated[CustomGrammarBody, Tag("~grammar")],
            by_field("type", "text", "grammar"),
        ]
        | None
    ) = honoured(_TOLD_ALONE)


class CustomToolBody(Closed):
    """A tool that the client runs, and that takes text."""

    type: Literal["custom"]
    custom: CustomBody
    cache_control: Unused = no_effect("prefixes are cached by their content")


class CustomNamedBody(Closed):
    """The name of such a tool."""

    name: str


class CustomChoiceBody(Closed):
    """This tool, which takes text."""

    type: Literal["custom"]
    custom: CustomNamedBody


class ResponsesCustomGrammarBody(CustomRuleBody):
    """Text of a grammar."""

    type: Literal["grammar"]


class ResponsesCustomToolBody(Closed):
    """A tool that the client runs, and that takes text."""

    type: Literal["custom"]
    name: str = Field(pattern=NAME)
    description: str | None = None
    format: (
        Annotated[
            Annotated[CustomTextFormatBody, Tag("~text")]
            | Annotated[ResponsesCustomGrammarBody, Tag("~grammar")],
            by_field("type", "text", "grammar"),
        ]
        | None
    ) = honoured(_TOLD_ALONE)
    defer_loading: Unused = no_effect("the model sees every tool from the start")
    allowed_callers: Unused = no_effect("only the model calls tools here")


# --- offered ------------------------------------------------------------------------------


def custom_function(tool: CustomToolBody | ResponsesCustomToolBody) -> ToolSpec:
    """Return the function that a model is given for a tool that takes text."""
    said = tool.custom if isinstance(tool, CustomToolBody) else tool
    told = [said.description] if said.description else []
    rule = said.format.grammar if isinstance(said.format, CustomGrammarBody) else said.format
    if isinstance(rule, CustomRuleBody):
        kind = "Lark grammar" if rule.syntax == "lark" else "regular expression"
        told.append(f"The input is text of this {kind}:\n{rule.definition}")
    description = "\n\n".join(told) or None
    return ToolSpec(name=said.name, description=description, parameters=PARAMETERS, strict=True)


def custom_tells(tools: Sequence[object] | None) -> frozenset[str]:
    """Return what an answer tells (`Parsed.tells`) of tools that take text, among those offered."""
    return frozenset(f"{_TOLD}{name}" for name in _names(tools))


def is_custom(parsed: Parsed, name: str) -> bool:
    """Return whether a call of this name is one of a tool that takes text."""
    return f"{_TOLD}{name}" in parsed.tells


def unheld_in(tools: Sequence[object] | None) -> tuple[str, ...]:
    """Return the paths of formats that text is not held to."""
    found: list[str] = []
    for index, tool in enumerate(tools or ()):
        if isinstance(tool, CustomToolBody) and isinstance(tool.custom.format, CustomGrammarBody):
            found.append(f"tools[{index}].custom.format")
        if isinstance(tool, ResponsesCustomToolBody) and isinstance(tool.format, CustomRuleBody):
            found.append(f"tools[{index}].format")
    return tuple(found)


def _names(tools: Sequence[object] | None) -> Iterator[str]:
    for tool in tools or ():
        if isinstance(tool, CustomToolBody):
            yield tool.custom.name
        elif isinstance(tool, ResponsesCustomToolBody):
            yield tool.name


# --- called -------------------------------------------------------------------------------


class InputText:
    """The text in a call's arguments, `{"input": "..."}`, as they come."""

    def __init__(self) -> None:
        self._rest = ""
        self._state: Literal["before", "inside", "after"] = "before"

    def add(self, arguments: str) -> str:
        """Return what more of the text is known by a piece of the arguments."""
        self._rest += arguments
        if self._state == "before":
            begun = _BEGIN.match(self._rest)
            if begun is None:
                return ""
            self._state, self._rest = "inside", self._rest[begun.end() :]
        return self._taken(_WHOLE) if self._state == "inside" else ""

    def end(self) -> str:
        """Return what was held back; of arguments of another form all of them."""
        if self._state == "inside":
            return self._taken(_LOOSE)
        other, self._rest = self._rest.strip(), ""
        return "" if self._state == "after" or other == "{}" else other

    def _taken(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._rest)
        written = "" if found is None else found[0]
        self._rest = self._rest[len(written) :]
        if self._rest.startswith('"'):
            self._state = "after"
        text: str = json.loads(f'"{written}"', strict=False)
        # half a pair cannot be written in UTF-8
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def input_of(arguments: str) -> str:
    """Return the text of a call's arguments."""
    text = InputText()
    return text.add(arguments) + text.end()
