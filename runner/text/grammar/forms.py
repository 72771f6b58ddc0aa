"""Turn a client's output format into rules of llguidance's Lark dialect.

Pure. A schema is narrowed and written after `%json`; a regular expression, a list of texts and a
GBNF grammar become grammars of their own. Their sizes are checked here, before they are parsed.
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
"""Maximum size in bytes of a regular expression, of a grammar, or of all permitted texts
together."""
CHOICES_AT_MOST = 1000

_BLANK = r"[ \t\n]{0,24}"
"""White space between JSON tokens: enough for indentation, too little for a model to write blanks
forever."""
_GUIDANCE: dict[str, Any] = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_pattern": _BLANK,
}
EXACT_INTEGER = 2**53 - 1
"""The largest integer that all readers of JSON represent exactly (RFC 8259, section 6)."""
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""The formats that llguidance enforces. JSON Schema treats any other format as a mere
annotation."""
FARTHEST = 92 * 10**17
"""The largest bound of a number; larger ones exceed llguidance's 64-bit numbers."""
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
    """Refuse schemas that are too large or too deep to compile. Raises BadRequest."""
    level: list[Any] = [schema]
    for _ in range(SCHEMA_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            break
    else:
        raise BadRequest(
            f"the schema is nested too deep: the limit is {SCHEMA_DEPTH} levels", field=field
        )
    size = len(json.dumps(schema))
    if size > SCHEMA_BYTES:
        raise BadRequest(
            f"the schema is too large: {size} bytes; the limit is {SCHEMA_BYTES}", field=field
        )


def _children(node: Any) -> Sequence[Any]:
    if isinstance(node, dict):
        return list(cast(dict[str, Any], node).values())
    return cast(list[Any], node) if isinstance(node, list) else ()


def narrowed(schema: Any) -> Any:
    """Return the schema, narrowed so that a model cannot write digits or properties forever.
    Integers without bounds get bounds. Objects that list their properties and do not mention others
    allow no others. Parts that cannot be enforced are dropped: annotation formats and bounds beyond
    all possible values. Every match of the result also matches `schema`."""
    if isinstance(schema, list):
        return [narrowed(part) for part in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    node = cast(dict[str, Any], schema)
    result = {
        key: value if key in _AS_IT_IS else _within_reach(node, key, narrowed(value))
        for key, value in node.items()
        if not (key == "format" and isinstance(value, str) and value not in FORMATS)
    }
    if isinstance(node.get("allOf"), list):
        result["allOf"] = [_reachable(part) for part in cast(list[Any], node["allOf"])]
    if node.get("type") == "integer" and not any(
        key in _AS_IT_IS or key.endswith(("inimum", "aximum")) for key in node
    ):
        result |= {"minimum": -EXACT_INTEGER, "maximum": EXACT_INTEGER}
    if node.get("type") == "object" and isinstance(node.get("properties"), dict):
        required = node.get("required", [])
        names = cast(list[Any], required) if isinstance(required, list) else [None]
        is_complete = all(isinstance(name, str) and name in node["properties"] for name in names)
        if is_complete and not any(key in node for key in _OTHER_PROPERTIES):
            result["additionalProperties"] = False
    return result


def _reachable(schema: Any) -> Any:
    """Return a part of an `allOf` without what cannot be enforced. Unlike `narrowed`, this adds no
    bounds and forbids no properties, because the other parts may have further properties."""
    if isinstance(schema, list):
        return [_reachable(part) for part in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    node = cast(dict[str, Any], schema)
    return {
        key: value if key in _LITERAL else _within_reach(node, key, _reachable(value))
        for key, value in node.items()
        if not (key == "format" and isinstance(value, str) and value not in FORMATS)
    }


def _within_reach(node: Mapping[str, Any], key: str, value: Any) -> Any:
    """Return the value of a keyword. A bound that is out of llguidance's range becomes the largest
    that it supports. A bound stays unchanged if the opposite bound is out of range on the same
    side."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    others = [node.get(other) for other in _OPPOSITE.get(key, ())]
    numbers = [bound for bound in others if isinstance(bound, int | float)]
    if key in _HIGHEST and value > FARTHEST > max(numbers, default=0):
        return FARTHEST
    if key in _LOWEST and value < -FARTHEST < min(numbers, default=0):
        return -FARTHEST
    return _LONGEST if key == "maxLength" and value > _LONGEST else value


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return a `%json` rule with our own compile options; options in a client's schema are
    ignored."""
    return "%json " + json.dumps({**narrowed(dict(schema)), "x-guidance": _GUIDANCE})


def rule_of(form: OutputFormat) -> str | None:
    """Return the Lark grammar of a client's own rule; None for free text and JSON. Raises
    BadRequest if it is too large, empty or invalid."""
    if form.kind not in ("regex", "choice", "grammar"):
        return None
    texts = form.choices if form.kind == "choice" else (form.rule or "",)
    if not any(texts) or len(texts) > CHOICES_AT_MOST:
        text = f"a choice must have 1 to {CHOICES_AT_MOST} texts, at least one of them not empty"
        raise BadRequest(text, field=form.field)
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as problem:
        raise BadRequest(
            "the rule contains half of a surrogate pair, which is not a character", field=form.field
        ) from problem
    if size > RULE_BYTES:
        text = f"the rule is too large: {size} bytes; the limit is {RULE_BYTES}"
        raise BadRequest(text, field=form.field)
    if form.kind == "choice":
        return "start: " + " | ".join(quoted(text) for text in dict.fromkeys(texts))
    return _regex(texts[0]) if form.kind == "regex" else _grammar(texts[0], form.field)


def _regex(pattern: str) -> str:
    made = json.loads(LLMatcher.grammar_from_regex(pattern))
    return made["grammars"][0]["lark_grammar"]


def _grammar(text: str, field: str) -> str:
    if not is_gbnf(text):
        why = "the grammar must be in GBNF, with rules like `root ::= ...`"
        raise BadRequest(why, field=field)
    try:
        return lark_of(text)
    except GbnfError as problem:
        raise BadRequest(f"this is not a valid GBNF grammar: {problem}", field=field) from problem


def quoted(text: str) -> str:
    """Return a text quoted for Lark and JSON."""
    return json.dumps(text, ensure_ascii=False)
