"""Parses calls whose arguments stand between tags: Qwen3-Coder's, GLM's, MiniMax's, LongCat's.

Pure. What opens as such a call is one: a value that is not of its schema's type is told as the
text that it is, and an end that is missing is where the next tag opens. mlx-lm's parsers raise at
the first such value, or drop it.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class TaggedForm:
    """How calls and arguments are found, each pattern with a name and the text behind it.
    `guesses`: a value without a schema is any JSON, else an object or a list."""

    call: re.Pattern[str]
    argument: re.Pattern[str]
    guesses: bool = False


def _form(call: str, argument: str, *, guesses: bool = False) -> TaggedForm:
    return TaggedForm(re.compile(call, re.DOTALL), re.compile(argument, re.DOTALL), guesses)


_NAMED = r"""\s*["']?([^"'<>]+?)["']?\s*"""
TAGGED: Mapping[str, TaggedForm] = {
    "qwen3_coder": _form(
        r"<function=\s*([^\s<>]+)\s*>?(.*?)(?:</function>|(?=<function=)|\Z)",
        r"<parameter=\s*([^\s<>]+)\s*>?(.*?)(?:</parameter>|(?=<parameter=)|\Z)",
    ),
    "minimax_m2": _form(
        rf"<invoke name={_NAMED}>(.*?)(?:</invoke>|(?=<invoke name=)|\Z)",
        rf"<parameter name={_NAMED}>(.*?)(?:</parameter>|(?=<parameter name=)|\Z)",
    ),
    "glm47": _form(
        r"\A\s*([^\s<>{}\[\]]+)\s*(?=<arg_key>)(.*)",
        r"<arg_key>(.*?)</arg_key>\s*(?:<arg_value>)?(.*?)(?:</arg_value>|(?=<arg_key>)|\Z)",
        guesses=True,
    ),
    "longcat": _form(
        r"\A\s*([^\s<>{}\[\]]+)\s*(?=<longcat_arg_key>)(.*)",
        r"<longcat_arg_key>(.*?)</longcat_arg_key>\s*(?:<longcat_arg_value>)?(.*?)"
        r"(?:</longcat_arg_value>|(?=<longcat_arg_key>)|\Z)",
        guesses=True,
    ),
}
"""By mlx-lm's name of the form."""

_TYPES: Mapping[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_WORDS = (
    ("string", ("str", "text", "varchar", "char", "enum")),
    ("integer", ("int", "uint", "long", "short", "unsigned")),
    ("number", ("num", "float", "double")),
    ("boolean", ("bool", "binary")),
    ("object", ("obj", "dict", "map")),
    ("array", ("arr", "list", "tuple")),
    ("null", ("null", "none")),
)
"""What schemas call a type, by how the word begins."""


def tagged_calls(
    form: TaggedForm, raw: str, tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the calls in the text between the marks; none where it does not open as one does."""
    found: list[dict[str, Any]] = []
    for name, body in form.call.findall(raw):
        known = _properties(name, tools)
        arguments = {
            argument: _value(text, known.get(argument), guesses=form.guesses)
            for argument, text in _arguments(form, body)
        }
        found.append({"name": name, "arguments": arguments})
    return found


def _arguments(form: TaggedForm, body: str) -> Iterator[tuple[str, str]]:
    for name, text in form.argument.findall(body):
        lines = text.removeprefix("\r").removeprefix("\n").removesuffix("\n").removesuffix("\r")
        yield name.strip(), text.strip() if form.guesses else lines


def _properties(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for tool in tools:
        function: Any = tool.get("function")
        if isinstance(function, Mapping) and cast(Any, function).get("name") == name:
            schema: Any = cast(Any, function).get("parameters")
            known = schema.get("properties") if isinstance(schema, Mapping) else None  # pyright: ignore
            return cast(Mapping[str, Any], known) if isinstance(known, Mapping) else {}
    return {}


def _value(text: str, schema: Any, *, guesses: bool) -> Any:
    """Return a value of its schema's type; the text where it is none."""
    kinds = _kinds(schema)
    bare = text.strip()
    is_text = kinds == {"string"}
    if bare.lower() == "null" and not (guesses and is_text):
        return None
    if is_text:
        return text
    for kind, read in _READERS:
        if kind in kinds:
            found = read(bare)
            if found is not None:
                return found
    if kinds & {"string", "integer", "number", "boolean", "null"}:
        return text
    found: object = _json(bare)
    if isinstance(found, dict | list) or (guesses and not kinds and found is not None):
        return cast(object, found)
    return text


def _kinds(schema: Any) -> set[str]:
    """Return the types that a schema allows; none where it says nothing of them."""
    if not isinstance(schema, Mapping):
        return set()
    told = cast(Mapping[str, Any], schema)
    types: Any = told.get("type")
    words = cast(list[Any], types) if isinstance(types, list) else [types]
    found = {_kind(word) for word in words if isinstance(word, str)}
    values: Any = told.get("enum") or ([told["const"]] if "const" in told else [])
    if not found and isinstance(values, list):
        found = {_kind_of(value) for value in cast(list[Any], values)}
    for name in ("anyOf", "oneOf", "allOf"):
        others: Any = told.get(name)
        if isinstance(others, list):
            found = found.union(*map(_kinds, cast(list[Any], others)))
    return found


def _kind(word: str) -> str:
    plain = word.strip().lower()
    for kind, begins in _WORDS:
        if plain == kind or plain.startswith(begins):
            return kind
    return "any"


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return _TYPES.get(type(value), "null")


def _whole_number(text: str) -> int | None:
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) < 1000 else None
    number = _number(text)
    return number if isinstance(number, int) else None


def _number(text: str) -> float | int | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number) or "_" in text:
        return None
    return int(text) if _INTEGER.fullmatch(text) else int(number) if number.is_integer() else number


def _truth(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _object(text: str) -> dict[str, Any] | None:
    found = _json(text)
    return cast(dict[str, Any], found) if isinstance(found, dict) else None


def _array(text: str) -> list[Any] | None:
    found = _json(text)
    return cast(list[Any], found) if isinstance(found, list | tuple) else None


def _json(text: str) -> Any:
    """Return a value written in JSON, or as Python writes it; None where it is in neither way."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


_READERS = (
    ("integer", _whole_number),
    ("number", _number),
    ("boolean", _truth),
    ("object", _object),
    ("array", _array),
)
"""The narrowest first."""
