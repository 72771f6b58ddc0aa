"""Write tool calls as rules of llguidance's Lark dialect, in a family's own format.

Pure. A call's arguments follow their tool's schema: as one JSON object, or as tags with one value
each. If a format cannot express a schema exactly, a strict tool is refused; a tool that is not
strict may have any arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import ToolSpec
from runner.text.families import CallForm, Pattern, Piece, Tags
from runner.text.grammar.forms import json_rule, quoted

CALLS_AT_MOST = 16
"""The most tool calls of one choice whose output follows a grammar."""

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_PLAIN_TYPES = ("integer", "number", "boolean", "object", "array")
_ABOUT = ("title", "description", "default", "examples")
"""Keywords of a JSON schema that describe a value without constraining it."""
_OF_OBJECTS = (*_ABOUT, "type", "properties", "required", "additionalProperties", "$schema",
               "$defs", "definitions", "strict")  # fmt: skip
_OF_TEXTS = (*_ABOUT, "type", "enum", "const", "minLength", "maxLength")


@dataclass(frozen=True, slots=True)
class Calls:
    """Tool calls in a family's `form`. `need` says whether the output must be calls; `only` names
    the one tool that is called, once. `held`: calls follow their format even if no tool is
    strict."""

    form: CallForm
    tools: tuple[ToolSpec, ...]
    parallel: bool
    only: str | None = None
    need: Literal["may", "must"] = "must"
    held: bool = False


@dataclass(slots=True)
class CallRules:
    """Writes the grammar rules of tool calls. `mark` writes a marker: as a token if the vocabulary
    has a token for it, else as text. `is_end` says whether a text is a token that ends an output.
    `check` refuses a schema that cannot be enforced, naming its field."""

    mark: Callable[[str], str]
    is_end: Callable[[str], bool]
    check: Callable[[Mapping[str, Any], str], None]
    _lines: list[str] = field(default_factory=list[str])

    def write(self, calls: Calls) -> list[str]:
        """Return the rule `calls`, made of one or more of the rule `call`, and the rules that both
        need. Raises BadRequest, naming the tool."""
        form = calls.form
        allowed = [
            (place, tool)
            for place, tool in enumerate(calls.tools)
            if calls.only in (None, tool.name)
        ]
        for place, tool in allowed:
            self._write_tool(form, place, tool)
        more = ""
        if calls.parallel and calls.only is None and not form.is_single:
            more = f"({self.pieces(form.between)} call){{0,{CALLS_AT_MOST - 1}}}"
        names = " | ".join(f"call_{place}" for place, _ in allowed)
        head, tail = self.pieces(form.head), self.pieces(form.tail)
        rows = f"{self.pieces(form.opens)} call {more} {self.pieces(form.closes)}"
        return [f"calls: {rows}", f"call: {head} ({names}) {tail}", *self._lines]

    def pieces(self, pieces: Sequence[Piece]) -> str:
        """Return the text of a rule that writes these pieces in sequence. A token that ends an
        output is left out, because a finished grammar allows it anyway."""
        written = [
            f"/{piece.regex}/" if isinstance(piece, Pattern) else self.mark(piece)
            for piece in pieces
            if isinstance(piece, Pattern) or not self.is_end(piece)
        ]
        return " ".join(written)

    def _write_tool(self, form: CallForm, place: int, tool: ToolSpec) -> None:
        if form.names is None:
            name = quoted(quoted(tool.name))
        elif re.fullmatch(form.names, tool.name):
            name = quoted(tool.name)
        else:
            text = f"this model's tool call format does not allow the name {tool.name!r}"
            raise BadRequest(text, field=f"tools[{place}].name")
        arguments = f"arguments_{place}"
        self._lines.append(f"call_{place}: {name} {self.pieces(form.middle)} {arguments}")
        where = f"tools[{place}].parameters"
        if form.tags is None:
            body = json_rule(self._schema(tool, where))
        else:
            body = self._tagged(form.tags, tool, place, where)
        self._lines.append(f"{arguments}: {body}")

    def _schema(self, tool: ToolSpec, where: str) -> Mapping[str, Any]:
        """Return the schema of a tool's arguments. If it cannot be enforced, a strict tool is
        refused and another tool gets any object."""
        if not tool.parameters:
            return _ANY_OBJECT
        schema = {"type": "object", **tool.parameters}
        try:
            self.check(schema, where)
        except BadRequest:
            if tool.strict:
                raise
            return _ANY_OBJECT
        return schema

    def _tagged(self, tags: Tags, tool: ToolSpec, place: int, where: str) -> str:
        """Return the grammar of a tool's arguments as tags, in the order of its schema."""
        schema: Mapping[str, Any] = tool.parameters or _ANY_OBJECT
        try:
            return self._properties(tags, schema, f"{place}", where)
        except BadRequest:
            if tool.strict:
                raise
        name = f"ANY_NAME_{place}"
        self._lines.append(rf"{name}: /[\w.-]+/")
        value = self._text_to_end(tags, f"ANY_VALUE_{place}", {}, is_null_text=True)
        return f"({self._tag(tags, name)} {value})*"

    def _tag(self, tags: Tags, name: str) -> str:
        """Return a tag's text with the argument's name in it, as it is written before the value."""
        return f"{self.pieces(tags.before_name)} {name} {self.pieces(tags.behind_name)}"

    def _properties(self, tags: Tags, schema: Mapping[str, Any], rule: str, where: str) -> str:
        self.check({"type": "object", **schema}, where)
        properties = cast(dict[str, Any], schema.get("properties", {}))
        required = cast(list[Any], schema.get("required", []))
        odd = [key for key in schema if key not in _OF_OBJECTS]
        if odd or not set(required) <= set(properties):
            keyword = f"{odd[0]!r} of" if odd else "a condition on"
            raise _unheld(f"{keyword} the whole object", where)
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        made: list[str] = []
        for number, (name, of_it) in enumerate(properties.items()):
            if not re.fullmatch(r"[\w.-]+", name):
                raise _unheld(f"the name {name!r}", f"{where}.properties")
            value = self._value(
                tags, of_it, shared, f"{rule}_{number}", f"{where}.properties.{name}"
            )
            tag = f"{self._tag(tags, quoted(name))} {value}"
            made.append(tag if name in required else f"({tag})?")
        return " ".join(made) or '""'

    def _value(
        self, tags: Tags, schema: Any, shared: Mapping[str, Any], rule: str, where: str
    ) -> str:
        """Return the grammar of an argument's value, followed by the tag that ends the value."""
        fields = cast(dict[str, Any], schema) if isinstance(schema, dict) else {}
        kind: Any = fields.get("type")
        if kind == "string":
            return self._text(tags, fields, rule, where)
        if not fields or (not tags.any_json and kind not in _PLAIN_TYPES):
            raise _unheld("a value whose type is not a single simple type", where)
        whole = {**shared, **fields}
        self._lines.append(f"value_{rule}: {json_rule(whole)}")
        return f"value_{rule} {self.pieces(tags.behind_value)}"

    def _text(self, tags: Tags, schema: Mapping[str, Any], rule: str, where: str) -> str:
        odd = [key for key in schema if key not in _OF_TEXTS]
        if odd:
            raise _unheld(f"{odd[0]!r} on a string", where)
        if "enum" in schema or "const" in schema:
            texts = cast(list[Any], [schema["const"]] if "const" in schema else schema["enum"])
            for text in texts:
                if not _is_writable(text, tags):
                    raise _unheld(f"the value {text!r}", where)
            choices = " | ".join(quoted(text) for text in texts)
            return f"({choices}) {self.pieces(tags.behind_value)}"
        return self._text_to_end(tags, f"TEXT_{rule}", schema, is_null_text=tags.any_json)

    def _text_to_end(
        self, tags: Tags, rule: str, schema: Mapping[str, Any], *, is_null_text: bool
    ) -> str:
        """Return the grammar of a string value, followed by its closing tag. The string contains no
        tag that ends a value or a call. If the closing tag is not a token, it is part of the
        string's own rule, which would otherwise consume the tag's beginning."""
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        closing, *rest = tags.behind_value
        assert isinstance(closing, str)
        is_token = self.mark(closing).startswith("<[")
        size = f"{{{max(least, int(is_token))},{'' if most is None else most}}}"
        tag = closing.strip().removeprefix("</").removesuffix(">")
        free = rf"/(?s:.{size})/ & ~/(?s:.*)<\/(?:{tag}|tool_call|function|invoke)>(?s:.*)/"
        free += "" if is_null_text else " & ~/[nN][uU][lL][lL]/"
        if is_token:
            self._lines.append(f"{rule}: {free}")
            return f"{rule}{'' if least else '?'} {self.pieces(tags.behind_value)}"
        self._lines.append(f"{rule}: ( {free} ) {quoted(closing)}")
        return f"{rule} {self.pieces(rest)}"


def _is_writable(text: object, tags: Tags) -> bool:
    """Return whether a parser of these tags reads this text back unchanged."""
    if not isinstance(text, str) or text != text.strip() or "<" in text:
        return False
    return tags.any_json or text.lower() != "null"


def _unheld(what: str, where: str) -> BadRequest:
    """Return the error for a strict tool whose schema cannot be enforced in calls made of tags."""
    text = f"this model writes tool arguments between tags, which cannot enforce {what}"
    return BadRequest(text, field=where)
