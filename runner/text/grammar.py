"""Grammars that hold a choice's output to a format: JSON, a JSON schema, or tool calls.

Pure. Written in llguidance's Lark dialect and checked by building them against the model's
vocabulary, off the engine's thread, within stated limits of size, depth and work; what cannot
be enforced exactly is refused, never weakened. With thinking on, a thinking block may come first.
A `GrammarSpec.compiled` is opened with `open_matcher` alone, so that checker and engine share
one set of limits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import OutputFormat, ToolSpec
from runner.engine import GrammarSpec
from runner.text.prepared import SpanState
from runner.text.spans import Marks

SCHEMA_BYTES = 64 * 1024
SCHEMA_DEPTH = 48
CALLS_AT_MOST = 16
"""Tool calls that one choice may make under a grammar."""
KEPT_GRAMMARS = 128
PROBED_TOKENS = 24
"""How far a new grammar is tried out: what is too complex to run usually shows at once."""

_BLANK = r"[ \t\n]{0,24}"
"""White space between JSON tokens: enough for indentation, too little to drift away in."""
_GUIDANCE: dict[str, Any] = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_pattern": _BLANK,
}
EXACT_INTEGER = 2**53 - 1
"""Integers beyond it are not the same to all readers of JSON (RFC 8259, 6)."""
_AS_IT_IS = ("const", "enum", "default", "examples", "allOf")
_OTHER_PROPERTIES = (
    "additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties",
    "propertyNames", "dependentRequired", "dependentSchemas",
    "allOf", "anyOf", "oneOf", "not", "if", "$ref",
)  # fmt: skip
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ThinkFirst:
    """A thinking block may come before the constrained text. `opening` "reasoning": the prompt
    has opened it, and it must be closed."""

    marks: Marks
    opening: SpanState


@dataclass(frozen=True, slots=True)
class Calls:
    """Tool calls in the json_tools format, between `marks`. `need` says whether the output may
    be something else instead; `only` names the one tool that is called, once."""

    marks: Marks
    tools: tuple[ToolSpec, ...]
    parallel: bool
    only: str | None = None
    need: Literal["may", "must"] = "must"


def open_matcher(guide: LLTokenizer, spec: GrammarSpec) -> LLMatcher:
    """Return a matcher at the beginning of the grammar. It never raises: ask `is_error`."""
    return LLMatcher(guide, spec.compiled, log_level=0, limits=_limits())


class Grammars:
    """Makes and checks grammars for one vocabulary, and keeps the last few hundred."""

    def __init__(self, guide: LLTokenizer, token_ids: Mapping[str, int]) -> None:
        """`token_ids`: added tokens by their text, those of markers at least."""
        self._guide = guide
        self._token_ids = token_ids
        self._compiled = lru_cache(KEPT_GRAMMARS)(self._compile)

    def output(
        self, form: OutputFormat, *, think: ThinkFirst | None, calls: Calls | None
    ) -> GrammarSpec | None:
        """Return the grammar for `form` and the calls that must or may be made; None if all is
        free.

        Free text stays free around calls; a strict tool among those that may be called holds the
        calls in it to their form. Raises BadRequest, naming `response_format` or the tool at fault.
        """
        must = calls is not None and calls.need == "must"
        if form.kind == "text" and not must:
            return None if calls is None else self._free(calls, think)
        rules: list[str] = []
        bodies: list[str] = []
        if not must:
            schema = _ANY_OBJECT
            if form.kind == "json_schema":
                if form.json_schema is None:
                    raise BadRequest("there is no schema to keep to", field="response_format")
                schema = form.json_schema
                self._check_schema(schema, "response_format")
            bodies.append("answer")
            rules.append(f"answer: {_json_rule(schema)}")
        if calls is not None:
            bodies.append("calls")
            rules += self._call_rules(calls)
        body = bodies[0] if len(bodies) == 1 else f"({' | '.join(bodies)})"
        start = [f"start: {self._think_rule(think)}{body}"]
        field = "tools" if must else "response_format"
        return self._checked("\n".join(start + rules), field)

    def _free(self, calls: Calls, think: ThinkFirst | None) -> GrammarSpec | None:
        """Return a grammar of any text with calls in it that keep to their schemas. None where no
        tool is strict or a marker is no token: a call cannot be told there from text that looks
        like one."""
        marks = (calls.marks.start, calls.marks.end)
        if not any(tool.strict for tool in calls.tools) or not all(
            mark in self._token_ids for mark in marks
        ):
            return None
        others = [self._token_ids[text] for text in self._token_ids if text not in marks]
        loose = "".join(
            f" | <[{token}]>" for token in others if token not in self._guide.eos_tokens
        )
        rules = ["start: part*", f"part: TEXT{loose} | call", "TEXT: /(?s:.+)/"]
        return self._checked("\n".join(rules + self._call_rules(calls)[1:]), "tools")

    def _check_schema(self, schema: Mapping[str, Any], field: str) -> None:
        """Refuse a schema that is too large, or that llguidance cannot enforce alone."""
        check_size(schema, field)
        self._checked(f"start: {_json_rule(schema)}", field)

    def _call_rules(self, calls: Calls) -> list[str]:
        more = (
            f' ("\\n" call){{0,{CALLS_AT_MOST - 1}}}'
            if calls.parallel and calls.only is None
            else ""
        )
        opens, closes = self._mark(calls.marks.start), self._mark(calls.marks.end)
        allowed = [
            (place, tool)
            for place, tool in enumerate(calls.tools)
            if calls.only in (None, tool.name)
        ]
        names = [f"call_{place}" for place, _ in allowed]
        rules = [
            f"calls: call{more}",
            f'call: {opens} "\\n" ({" | ".join(names)}) "\\n" {closes}',
        ]
        for place, tool in allowed:
            head = _quoted(f'{{"name": {_quoted(tool.name)}, "arguments": ')
            schema = self._arguments(tool, f"tools[{place}].parameters")
            rules.append(f'call_{place}: {head} arguments_{place} "}}"')
            rules.append(f"arguments_{place}: {_json_rule(schema)}")
        return rules

    def _arguments(self, tool: ToolSpec, field: str) -> Mapping[str, Any]:
        """Return the schema of a tool's arguments. Only a strict tool promises its schema: another
        whose schema cannot be enforced gets any object."""
        if not tool.parameters:
            return _ANY_OBJECT
        schema = {"type": "object", **tool.parameters}
        try:
            self._check_schema(schema, field)
        except BadRequest:
            if tool.strict:
                raise
            return _ANY_OBJECT
        return schema

    def _think_rule(self, think: ThinkFirst | None) -> str:
        if think is None:
            return ""
        closes = f"/(?s:.*)/ {self._mark(think.marks.end)} /[ \\t\\n]{{0,8}}/ "
        if think.opening == "reasoning":
            return closes
        return f"({self._mark(think.marks.start)} {closes})? "

    def _mark(self, text: str) -> str:
        """Write a marker as its own token where it has one, else as text."""
        token = self._token_ids.get(text)
        return _quoted(text) if token is None else f"<[{token}]>"

    def _checked(self, lark: str, field: str) -> GrammarSpec:
        """Return the compiled grammar, from those kept or new. Raises BadRequest."""
        found = self._compiled(lark)
        if isinstance(found, str):
            raise BadRequest(f"this format cannot be enforced: {found}", field=field)
        return found

    def _compile(self, lark: str) -> GrammarSpec | str:
        key = hashlib.sha256(lark.encode("utf-8", "surrogatepass")).hexdigest()
        try:
            spec = GrammarSpec(key, LLMatcher.grammar_from_lark(lark))
            matcher = open_matcher(self._guide, spec)
            _probe(matcher, self._guide.eos_tokens)
        except Exception as problem:
            return str(problem)[:500]
        return _plain(matcher.get_error()) if matcher.is_error() else spec


def _probe(matcher: LLMatcher, eos: Sequence[int]) -> None:
    """Take a few tokens, a different corner of the vocabulary each time."""
    for turn in range(PROBED_TOKENS):
        if matcher.is_stopped():
            return
        mask = matcher.compute_bitmask()
        corner = turn * 2654435761 % len(mask)
        turned = mask[corner:] + mask[:corner]
        skipped = len(turned) - len(turned.lstrip(b"\0"))
        if skipped == len(turned):
            return
        lowest = turned[skipped] & -turned[skipped]
        token = (corner + skipped) % len(mask) * 8 + lowest.bit_length() - 1
        if token in eos or not matcher.consume_token(token):
            return


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
    properties in objects that name theirs and do not speak of others. What fits it fits
    `schema`."""
    if isinstance(schema, list):
        return [narrowed(one) for one in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    node = cast(dict[str, Any], schema)
    found = {key: value if key in _AS_IT_IS else narrowed(value) for key, value in node.items()}
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


def _json_rule(schema: Mapping[str, Any]) -> str:
    """Write `%json` with our own compile options; those that a client put in the schema are
    void."""
    return "%json " + json.dumps({**narrowed(dict(schema)), "x-guidance": _GUIDANCE})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _plain(error: str) -> str:
    """Return llguidance's message in one line, without its parser's state."""
    words = error.split("<state>")[0].split("<non-verbose/>")[0]
    return " ".join(words.split())[:400]


def _limits() -> LLParserLimits:
    """Return limits: a hostile pattern costs some 50 ms in all, and a large honest schema
    passes."""
    return LLParserLimits(
        initial_lexer_fuel=100_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )
