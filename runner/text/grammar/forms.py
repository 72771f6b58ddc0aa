"""What a client says the text must be, as rules of llguidance's Lark dialect.

Pure. A schema is narrowed and written after `%json`; a regular expression, a list of texts and a
grammar in GBNF become grammars of their own. All are bounded in size here, before they are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from llguidance import LLMatcher

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import OutputFormat
from runner.text.grammar.gbnf import GbnfError, is_gbnf, lark_of

SCHEMA_BYTES = 64 * 1024
SCHEMA_DEPTH = 48
RULE_BYTES = 64 * 1024
"""Of a regular expression, of a grammar, or of all texts to choose from."""
CHOICES_AT_MOST = 1000

_BLANK = r"[ \t\n]{0,24}"
"""White space between JSON tokens: enough for indentation, too little to drift away in."""
_GUIDANCE: dict[str, Any] = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_pattern": _BLANK,
}
EXACT_INTEGER = 2**53 - 1
"""Integers beyond it are not the same to all readers of JSON (RFC 8259, 6)."""
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""The formats that llguidance holds a text to; any other is an annotation, as the standard says."""
FARTHEST = 92 * 10**17
"""Bounds farther from 0 are beyond what llguidance counts to (64 bits)."""
_LONGEST = 2**31 - 1
_AS_IT_IS = ("const", "enum", "default", "examples", "allOf")
_LOWEST, _HIGHEST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_OPPOSITE = {**dict.fromkeys(_LOWEST, _HIGHEST), **dict.fromkeys(_HIGHEST, _LOWEST)}
_LITERAL = ("const", "enum", "default", "examples")
_OTHER_PROPERTIES = (
    "additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties",
    "propertyNames", "dependentRequired", "dependentSchemas",
    "allOf", "anyOf", "oneOf", "not", "if", "$ref",
)  # fmt: skip


def check_size(schema: Mapping[str, Any], field: str) -> None:
    """Refuse schemas larger or deeper than what is compiled here. Raises BadRequest."""
    level: list[Any] = [schema]
    for _ in range(SCHEMA_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            break
    else:
        raise BadRequest(f"the schema is nested deeper than {SCHEMA_DEPTH} levels", field=field)
    size = len(json.dumps(schema))
    if size > SCHEMA_BYTES:
        raise BadRequest(
            f"the schema is too large: {size} bytes > {SCHEMA_BYTES} maximum", field=field
        )


def _children(node: Any) -> Sequence[Any]:
    if isinstance(node, dict):
        return list(cast(dict[str, Any], node).values())
    return cast(list[Any], node) if isinstance(node, list) else ()


def narrowed(schema: Any) -> Any:
    """Return the schema without room to drift in: bounds for integers that have none, and no other
    properties in objects that name theirs and do not speak of others; and without what cannot be
    held: formats that are annotations, bounds beyond all that is ever made. What fits it fits
    `schema`."""
    if isinstance(schema, list):
        return [narrowed(one) for one in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    node = cast(dict[str, Any], schema)
    found = {
        key: value if key in _AS_IT_IS else _within_reach(node, key, narrowed(value))
        for key, value in node.items()
        if not (key == "format" and isinstance(value, str) and value not in FORMATS)
    }
    if isinstance(node.get("allOf"), list):
        found["allOf"] = [_reachable(one) for one in cast(list[Any], node["allOf"])]
    if node.get("type") == "integer" and not any(
        key in _AS_IT_IS or key.endswith(("inimum", "aximum")) for key in node
    ):
        found |= {"minimum": -EXACT_INTEGER, "maximum": EXACT_INTEGER}
    if node.get("type") == "object" and isinstance(node.get("properties"), dict):
        required = node.get("required", [])
        names = cast(list[Any], required) if isinstance(required, list) else [None]
        known = all(isinstance(name, str) and name in node["properties"] for name in names)
        if known and not any(key in node for key in _OTHER_PROPERTIES):
            found["additionalProperties"] = False
    return found


def _reachable(schema: Any) -> Any:
    """Return a part of an `allOf` without what cannot be held, and otherwise as it is: its
    properties are not all that the whole may have."""
    if isinstance(schema, list):
        return [_reachable(one) for one in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    node = cast(dict[str, Any], schema)
    return {
        key: value if key in _LITERAL else _within_reach(node, key, _reachable(value))
        for key, value in node.items()
        if not (key == "format" and isinstance(value, str) and value not in FORMATS)
    }


def _within_reach(node: Mapping[str, Any], key: str, value: Any) -> Any:
    """Return a bound, or one that is within reach where nothing that is made comes to it; not where
    all that the other bound allows is out of reach."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    others = [node.get(other) for other in _OPPOSITE.get(key, ())]
    numbers = [one for one in others if isinstance(one, int | float)]
    if key in _HIGHEST and value > FARTHEST > max(numbers, default=0):
        return FARTHEST
    if key in _LOWEST and value < -FARTHEST < min(numbers, default=0):
        return -FARTHEST
    return _LONGEST if key == "maxLength" and value > _LONGEST else value


def json_rule(schema: Mapping[str, Any]) -> str:
    """Write `%json` with our own compile options; those that a client put in the schema are
    void."""
    return "%json " + json.dumps({**narrowed(dict(schema)), "x-guidance": _GUIDANCE})


def rule_of(form: OutputFormat) -> str | None:
    """Return the grammar, in Lark, that a client's own rule is; None for free text and JSON. Raises
    BadRequest for one that is too large, empty or no such rule."""
    if form.kind not in ("regex", "choice", "grammar"):
        return None
    texts = form.choices if form.kind == "choice" else (form.rule or "",)
    if not any(texts) or len(texts) > CHOICES_AT_MOST:
        text = f"it must have 1 to {CHOICES_AT_MOST} texts, and not be empty"
        raise BadRequest(text, field=form.field)
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as problem:
        raise BadRequest("it holds half a character", field=form.field) from problem
    if size > RULE_BYTES:
        text = f"it is too large: {size} bytes > {RULE_BYTES} maximum"
        raise BadRequest(text, field=form.field)
    if form.kind == "choice":
        return "start: " + " | ".join(quoted(text) for text in dict.fromkeys(texts))
    return _regex(texts[0]) if form.kind == "regex" else _grammar(texts[0], form.field)


def _regex(pattern: str) -> str:
    made = json.loads(LLMatcher.grammar_from_regex(pattern))
    return made["grammars"][0]["lark_grammar"]


def _grammar(text: str, field: str) -> str:
    if not is_gbnf(text):
        said = "grammars are read in GBNF, whose rules are written `root ::= ...`"
        raise BadRequest(said, field=field)
    try:
        return lark_of(text)
    except GbnfError as problem:
        raise BadRequest(f"this is no grammar in GBNF: {problem}", field=field) from problem


def quoted(text: str) -> str:
    """Return a text as Lark and JSON write it."""
    return json.dumps(text, ensure_ascii=False)
