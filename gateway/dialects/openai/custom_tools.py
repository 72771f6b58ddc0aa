"""Custom tools, whose input is text instead of a JSON object: the types of their fields, and their
calls.

Pure. The model gets a custom tool as a function with one text argument, `input`. A call of that
function is rendered as a call of the custom tool. If the tool has a grammar, the model reads the
grammar in the function's description. The grammar is not enforced, so the format is reported as
ignored.
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
"""JSON schema of the parameters of the function that a model gets for a custom tool."""
_PREFIX = "custom:"
_GRAMMAR_EFFECT = (
    "the model sees a grammar, but it is not enforced; the format is reported as ignored"
)
_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*"
)
"""Matches the longest beginning of a JSON string whose decoded text no later character can change.
The match never ends between the two surrogates of a pair."""
_LOOSE = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')

# --- shapes -------------------------------------------------------------------------------


class CustomTextFormatBody(Closed):
    """The input of a custom tool may be any text."""

    type: Literal["text"]


class CustomRuleBody(Closed):
    """A grammar. The model reads it, but it is not enforced."""

    syntax: Literal["lark", "regex"]
    definition: str = Field(min_length=1)


class CustomGrammarBody(Closed):
    """The input of a custom tool should follow a grammar."""

    type: Literal["grammar"]
    grammar: CustomRuleBody


class CustomBody(Closed):
    """A custom tool's name, description and format."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    format: (
        Annotated[
            Annotated[CustomTextFormatBody, Tag("~text")]
            | Annotated[CustomGrammarBody, Tag("~grammar")],
            by_field("type", "text", "grammar"),
        ]
        | None
    ) = honoured(_GRAMMAR_EFFECT)


class CustomToolBody(Closed):
    """A tool that the client runs and that takes text."""

    type: Literal["custom"]
    custom: CustomBody
    cache_control: Unused = no_effect("prefixes are cached automatically")


class CustomNamedBody(Closed):
    """The name of a custom tool."""

    name: str


class CustomChoiceBody(Closed):
    """This custom tool must be called."""

    type: Literal["custom"]
    custom: CustomNamedBody


class ResponsesCustomGrammarBody(CustomRuleBody):
    """The input of a custom tool should follow a grammar."""

    type: Literal["grammar"]


class ResponsesCustomToolBody(Closed):
    """A tool that the client runs and that takes text."""

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
    ) = honoured(_GRAMMAR_EFFECT)
    defer_loading: Unused = no_effect("the model sees every tool from the start")
    allowed_callers: Unused = no_effect("in shoal, only the model calls tools")


# --- offering -----------------------------------------------------------------------------


def custom_function(tool: CustomToolBody | ResponsesCustomToolBody) -> ToolSpec:
    """Return the function that a model gets for a custom tool."""
    body = tool.custom if isinstance(tool, CustomToolBody) else tool
    texts = [body.description] if body.description else []
    rule = body.format.grammar if isinstance(body.format, CustomGrammarBody) else body.format
    if isinstance(rule, CustomRuleBody):
        kind = "Lark grammar" if rule.syntax == "lark" else "regular expression"
        texts.append(f"The input is text of this {kind}:\n{rule.definition}")
    description = "\n\n".join(texts) or None
    return ToolSpec(name=body.name, description=description, parameters=PARAMETERS, strict=True)


def custom_tells(tools: Sequence[object] | None) -> frozenset[str]:
    """Return the names with which `Parsed.tells` marks the custom tools among `tools`, so that
    `is_custom` recognises their calls."""
    return frozenset(f"{_PREFIX}{name}" for name in _names(tools))


def is_custom(parsed: Parsed, name: str) -> bool:
    """Return whether a call of the tool `name` is a call of a custom tool."""
    return f"{_PREFIX}{name}" in parsed.tells


def unheld_in(tools: Sequence[object] | None) -> tuple[str, ...]:
    """Return the field paths of grammars of custom tools, which are not enforced."""
    paths: list[str] = []
    for index, tool in enumerate(tools or ()):
        if isinstance(tool, CustomToolBody) and isinstance(tool.custom.format, CustomGrammarBody):
            paths.append(f"tools[{index}].custom.format")
        if isinstance(tool, ResponsesCustomToolBody) and isinstance(tool.format, CustomRuleBody):
            paths.append(f"tools[{index}].format")
    return tuple(paths)


def _names(tools: Sequence[object] | None) -> Iterator[str]:
    for tool in tools or ():
        if isinstance(tool, CustomToolBody):
            yield tool.custom.name
        elif isinstance(tool, ResponsesCustomToolBody):
            yield tool.name


# --- calls --------------------------------------------------------------------------------


class InputText:
    """Extracts the text in a call's arguments `{"input": "..."}` while pieces of the arguments
    arrive."""

    def __init__(self) -> None:
        self._rest = ""
        self._state: Literal["before", "inside", "after"] = "before"

    def add(self, arguments: str) -> str:
        """Add a piece of the arguments. Return the additional text that it completes."""
        self._rest += arguments
        if self._state == "before":
            match = _BEGIN.match(self._rest)
            if match is None:
                return ""
            self._state, self._rest = "inside", self._rest[match.end() :]
        return self._take(_WHOLE) if self._state == "inside" else ""

    def end(self) -> str:
        """End the arguments. Return the text that was held back. If the arguments do not begin like
        `{"input": "...`, return all of them unchanged."""
        if self._state == "inside":
            return self._take(_LOOSE)
        other, self._rest = self._rest.strip(), ""
        return "" if self._state == "after" or other == "{}" else other

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._rest)
        written = "" if match is None else match[0]
        self._rest = self._rest[len(written) :]
        if self._rest.startswith('"'):
            self._state = "after"
        text: str = json.loads(f'"{written}"', strict=False)
        # a lone surrogate cannot be encoded in UTF-8
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def input_of(arguments: str) -> str:
    """Return the text of a call's arguments."""
    text = InputText()
    return text.add(arguments) + text.end()
