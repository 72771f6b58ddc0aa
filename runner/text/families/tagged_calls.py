"""Parses tool calls whose arguments stand between tags, as Qwen3-Coder, GLM, MiniMax and other
models write them.

Pure. Text that opens like such a call is always a call. A value that does not fit its schema's type
is returned as a string. A call or a value without an end tag ends where the next tag opens. Text
between the tags is returned beside the call. In all these cases mlx-lm's own parsers raise an error
or lose text.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, cast

from runner.text.families.spans import Rest


@dataclass(frozen=True, slots=True)
class TaggedForm:
    """Patterns for calls and arguments; each matches a name and the text after it. `guesses`: a
    value without a schema may be any JSON, else only an object or a list. The group `kind`, if
    present, is the type in an argument's tag."""

    call: re.Pattern[str]
    argument: re.Pattern[str]
    guesses: bool = False


def _form(call: str, argument: str, *, guesses: bool = False) -> TaggedForm:
    return TaggedForm(re.compile(call, re.DOTALL), re.compile(argument, re.DOTALL), guesses)


_QUOTED = r'"([^"]*)"'


def _keyed(prefix: str) -> TaggedForm:
    key, value = f"{prefix}arg_key", f"{prefix}arg_value"
    return _form(
        rf"\A\s*([^\s<>{{}}\[\]]+)\s*(?=<{key}>|\Z)(.*)",
        rf"<{key}>((?:(?!<{key}>).)*?)</{key}>\s*(?:</{key}>\s*)*(?:<{value}>)*(.*?)"
        rf"(?:</{value}>|(?=<{key}>)|\Z)",
        guesses=True,
    )


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
    "muse_spark": _form(
        rf"<atem:invoke name={_NAMED}>(.*?)(?:</atem:invoke>|(?=<atem:invoke name=)|\Z)",
        rf"<atem:parameter name={_NAMED}>(.*?)"
        r"(?:</atem:parameter>|(?=<atem:parameter name=)|\Z)",
        guesses=True,
    ),
    "minicpm5": _form(
        rf"(?:\A|<function name=){_NAMED}>(.*?)(?:</function>|(?=<function name=)|\Z)",
        rf"<param name={_NAMED}>(\s*<!\[CDATA\[.*?\]\]>\s*|.*?)"
        r"(?:</param>|(?=<param name=)|\Z)",
        guesses=True,
    ),
    "kimi_k3": _form(
        rf"(?!.*<\|open\|>json)<\|open\|>call\b(?:(?!<\|sep\|>).)*?tool={_QUOTED}(?:(?!<\|sep\|>).)*<\|sep\|>"
        r"(.*?)(?:<\|close\|>call<\|sep\|>|(?=<\|open\|>call\b)|\Z)",
        rf"<\|open\|>argument\b(?:(?!<\|sep\|>|key=).)*key={_QUOTED}"
        r"(?:(?!<\|sep\|>|type=).)*(?:type=\"(?P<kind>\w+)\")?(?:(?!<\|sep\|>).)*<\|sep\|>"
        r"(?P<text>.*?)(?:<\|close\|>argument<\|sep\|>|(?=<\|open\|>argument\b)|\Z)",
    ),
    "glm47": _keyed(""),
    "laguna": _keyed(""),
    "longcat": _keyed("longcat_"),
}
"""Maps mlx-lm's name of a tool call format to our patterns for that format."""

_TAGS = re.compile(
    r"</?(?:\w+[:_])?(?:tool_call|function|parameter|param|invoke|arg_key|arg_value)\b[^<>\n]*>"
    r"""|<(?:\w+[:_])?(?:function|parameter|param|invoke)(?:=|\s+name=)["']?"""
    r"|<\|(?:open|close)\|>(?:(?!<\|sep\|>).)*<\|sep\|>"
)
_SCRAPS = re.compile(r"""["'>\s]*""")
"""Characters that are left over from a tag whose end the model wrote twice."""
_CDATA = re.compile(r"\s*<!\[CDATA\[(.*?)\]\]>\s*", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_SYNTAX = re.compile(
    r"<\|\w+\|>|\b(?:call|tool|index|argument|key|type|json|true|false|null|None|string|boolean|number|array|object)\b"
)
_WORD = re.compile(r"[^\W\d_]\w+")
Parse = Callable[[str, Sequence[Mapping[str, Any]]], object]

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
"""For each JSON Schema type, the beginnings of other names of that type which tool schemas use."""


def tagged_calls(form: TaggedForm, raw: str, tools: Sequence[Mapping[str, Any]]) -> list[object]:
    """Return the calls in the text between the marks, and a `Rest` with text outside of them; empty
    if the text does not open like a call."""
    calls: list[object] = []
    rest: list[str] = []
    matches = [*_spread(form.call, raw, rest)]
    for match, later in zip_longest(matches, matches[1:]):
        name = _unquoted(match[1])
        is_open = match.end() == match.end(2) and not match[2].strip()
        if is_open and later is not None and later[1] == match[1]:
            continue  # it is repeated
        properties = _properties(name, tools)
        if properties is None and "<" not in raw:
            return []  # a word between marks is a call only if it names a tool
        schemas = dict(properties or {})
        arguments: dict[str, str] = {}
        for tag in _spread(form.argument, match[2], rest):
            argument, text = _unquoted(tag[1].strip()), _bare(form, tag[tag.lastindex or 2])
            if kind := tag.groupdict().get("kind"):
                schemas.setdefault(argument, {"type": kind})
            if arguments.get(argument):
                rest.append(f"{arguments[argument]}\n")
            arguments[argument] = text or arguments.get(argument, "")
        values = {
            argument: _value(text, schemas.get(argument), guesses=form.guesses)
            for argument, text in arguments.items()
        }
        calls.append({"name": name, "arguments": values})
    left = _TAGS.sub("", "".join(rest)).strip()
    return [*calls, Rest(left)] if calls and not _SCRAPS.fullmatch(left) else calls


def _spread(pattern: re.Pattern[str], text: str, rest: list[str]) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern; append the text between them to `rest`."""
    place = 0
    for match in pattern.finditer(text):
        rest.append(text[place : match.start()])
        place = match.end()
        yield match
    rest.append(text[place:])


def _bare(form: TaggedForm, text: str) -> str:
    """Return a value without its CDATA marks, or without the line breaks around it that are only
    layout."""
    cdata = _CDATA.fullmatch(text)
    if cdata is not None:
        return cdata[1]
    lines = text.removeprefix("\r").removeprefix("\n").removesuffix("\n").removesuffix("\r")
    return text.strip() if form.guesses else lines


def checked_parser(parse: Parse) -> Parse:
    """Return the parser with a check added. It raises ValueError if a word of the text is in none
    of the parsed calls."""

    def read(raw: str, tools: Sequence[Mapping[str, Any]]) -> object:
        """Return the calls that the wrapped parser finds. Raises ValueError if a word of the text
        is in none of them."""
        calls = parse(raw, tools)
        words_read = str(calls).lower()
        words = _WORD.findall(_SYNTAX.sub(" ", _ESCAPE.sub(" ", raw)))
        if any(word.lower() not in words_read for word in words):
            raise ValueError("the parser would lose text of the call")
        return calls

    return read


def _unquoted(name: str) -> str:
    """Return a name in which `&quot;` and `&amp;` are replaced by the characters that they stand
    for."""
    return name.replace("&quot;", '"').replace("&amp;", "&")


def _properties(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the schemas of a tool's arguments; None if there is no such tool."""
    for tool in tools:
        function: Any = tool.get("function")
        if isinstance(function, Mapping) and cast(Any, function).get("name") == name:
            schema: Any = cast(Any, function).get("parameters")
            properties = schema.get("properties") if isinstance(schema, Mapping) else None  # pyright: ignore
            return cast(Mapping[str, Any], properties) if isinstance(properties, Mapping) else {}
    return None


def _value(text: str, schema: Any, *, guesses: bool) -> Any:
    """Return the value that `text` has in the type of its schema; the text itself if it does not
    fit that type."""
    kinds = _kinds(schema)
    bare = text.strip()
    is_text = kinds == {"string"}
    if bare.lower() == "null" and not (guesses and is_text):
        return None
    if is_text:
        return text
    for kind, read in _READERS:
        if kind in kinds:
            parsed = read(bare)
            if parsed is not None:
                return parsed
    if kinds & {"string", "integer", "number", "boolean", "null"}:
        return text
    parsed: object = _json(bare)
    if isinstance(parsed, dict | list) or (guesses and not kinds and parsed is not None):
        return cast(object, parsed)
    return text


def _kinds(schema: Any) -> set[str]:
    """Return the types that a schema allows; empty if it names none."""
    if not isinstance(schema, Mapping):
        return set()
    fields = cast(Mapping[str, Any], schema)
    types: Any = fields.get("type")
    words = cast(list[Any], types) if isinstance(types, list) else [types]
    kinds = {_kind(word) for word in words if isinstance(word, str)}
    values: Any = fields.get("enum") or ([fields["const"]] if "const" in fields else [])
    if not kinds and isinstance(values, list):
        kinds = {_kind_of(value) for value in cast(list[Any], values)}
    for name in ("anyOf", "oneOf", "allOf"):
        others: Any = fields.get(name)
        if isinstance(others, list):
            kinds = kinds.union(*map(_kinds, cast(list[Any], others)))
    return kinds


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
    value = _json(text)
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def _array(text: str) -> list[Any] | None:
    value = _json(text)
    return cast(list[Any], value) if isinstance(value, list | tuple) else None


def _json(text: str) -> Any:
    """Return a value from JSON or a Python literal; None if the text is neither, or if JSON has no
    such kind (`...`, `1j`, `b''`)."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return None if value is ... or isinstance(value, bytes | complex) else value


_READERS = (
    ("integer", _whole_number),
    ("number", _number),
    ("boolean", _truth),
    ("object", _object),
    ("array", _array),
)
"""For each type, the function that reads a value of that type from text (or returns None); the
narrowest type comes first."""
