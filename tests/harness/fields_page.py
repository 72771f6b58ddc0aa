"""Write docs/operations/fields.md from the types of bodies: every field and its verdict.

The claims come from `tests/harness/field_claims.py`; a test holds the parsers to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from bus.wire.shares import PRIORITIES
from gateway.dialects.body import EXTRAS
from tests.harness.field_claims import Claim, bodies, claims_of, insides_of
from tests.harness.field_samples import schema_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "fields.md"
HEAD = """# Fields

Generated from the types of bodies by `make docs`; do not edit. A test holds every row to the
parsers. [http-api.md](http-api.md) has examples and explains fields that work together.

| verdict | meaning |
|---|---|
| yes | the field has an effect |
| ignored | the field is accepted and has no effect |
| only X | X and `null` have no effect; any other value is a 400 that names the field |
| no | any value is a 400 that names the field and says what to do |

`null` means that a field is left out. In Ollama's bodies and those about prompts so do an empty
text, list or object, 0 and false if the verdict is no. A field that is not listed is ignored and
named in `X-Shoal-Ignored`, or refused as a typing error; shoal's own routes refuse it.
`cache_control` is ignored in every object: prefixes are found by their content. The `type` or
`role` of an object stands before its fields. An empty "in" means every body of the table.
"""
CACHING = "cache_control"
"""The field of many objects that the head of the page tells of."""
GROUPS: Mapping[str, Mapping[str, str]] = {
    "OpenAI: chat and text completions": {
        "/v1/chat/completions": "chat",
        "/v1/completions": "completions",
    },
    "OpenAI: responses": {
        "/v1/responses": "responses",
        "/v1/responses/input_tokens": "input_tokens",
    },
    "Ollama: chat and generate": {"/api/chat": "chat", "/api/generate": "generate"},
    "Ollama: models": {
        "/api/show": "show",
        "/api/pull": "pull",
        "/api/delete": "delete",
        "/api/create": "create",
        "/api/copy": "copy",
    },
    "Anthropic: messages": {
        "/v1/messages": "messages",
        "/v1/messages/count_tokens": "count_tokens",
    },
    "Prompts": {
        "/tokenize": "tokenize",
        "/detokenize": "detokenize",
        "/apply-template": "apply-template",
    },
    "Embeddings": {
        "/v1/embeddings": "/v1/embeddings",
        "/api/embed": "/api/embed",
        "/api/embeddings": "/api/embeddings",
    },
    "Reranking": {
        "/v1/rerank": "/v1/rerank",
        "/v2/rerank": "/v2/rerank",
        "/rerank": "/rerank",
    },
}
"""The bodies that share a table: the path of each, and its word in the table."""
Row = tuple[str, str, str]


def page() -> str:
    """Return the whole page."""
    rest = dict(bodies())
    of_path = {route.path: body for body, routes in rest.items() for route in routes}
    parts, seen = [HEAD, _extras()], set[type[BaseModel]]()
    for title, paths in GROUPS.items():
        group = {of_path[path]: word for path, word in paths.items()}
        parts.append(_group(title, group, seen))
        for body in group:
            del rest[body]
    routes = [
        (", ".join(dict.fromkeys(f"`{route.method} {route.path}`" for route in routes)), body)
        for body, routes in rest.items()
    ]
    rows = [(title, _fields(body)) for title, body in routes]
    parts.append("## Other routes\n\n" + _table(("route", "fields"), rows))
    return "\n".join(parts)


def _extras() -> str:
    words = {**EXTRAS}
    named = ", ".join(f"`{word}` {number}" for word, number in PRIORITIES.items())
    words["x_priority"] = f"{named}, or an integer from 0 to 1000; lower goes first"
    rows = [(f"`{name}`", said) for name, said in words.items()]
    about = "All with the verdict yes. shoal's own routes accept them without effect.\n\n"
    return "## In every body\n\n" + about + _table(("field", "meaning"), rows)


def _group(title: str, group: Mapping[type[BaseModel], str], seen: set[type[BaseModel]]) -> str:
    """Return a heading, the table of the bodies' fields, and that of the objects in them that are
    not in `seen` yet."""
    found: dict[str, dict[Row, list[str]]] = {}
    for body, word in group.items():
        for claim in claims_of(body):
            row = _row(claim, schema_of(body))
            found.setdefault(claim.name, {}).setdefault(row, []).append(word)
    merged: dict[tuple[str, Row], list[str]] = {}
    for name, rows in found.items():
        for row, words in rows.items():
            where = "" if len(words) == len(group) else ", ".join(words)
            merged.setdefault((where, row), []).append(f"`{name}`")
    lines = [
        (", ".join(names), where, values, verdict, note)
        for (where, (values, verdict, note)), names in merged.items()
    ]
    heads = ("field", "in", "values", "verdict", "note")
    parts = [f"## {title}\n", _table(heads, lines)]
    if inner := list(_inner_rows(group, seen)):
        parts.append(_table(("object", "fields"), inner))
    return "\n".join(parts)


def _inner_rows(
    owners: Iterable[type[BaseModel]], seen: set[type[BaseModel]]
) -> Iterator[tuple[str, str]]:
    """Yield a row for each kind of object that is not in `seen`: the paths where it stands first,
    and its fields. Objects with the same fields share a row."""
    waiting = [("", owner) for owner in owners]
    said: dict[str, list[str]] = {}
    while waiting:
        prefix, owner = waiting.pop(0)
        for inside in insides_of(owner):
            path = f"{prefix}.{inside.path}".removeprefix(".")
            if inside.kind not in seen:
                seen.add(inside.kind)
                waiting.append((path, inside.kind))
                words = " ".join(filter(None, (f"`{path}`", _words_of(inside.kind))))
                said.setdefault(_fields(inside.kind), []).append(words)
    for fields, paths in said.items():
        yield ", ".join(dict.fromkeys(paths)), fields or "none"


def _fields(owner: type[BaseModel]) -> str:
    """Return an object's fields in words: those with an effect, then by verdict."""
    schema = schema_of(owner)
    yes: dict[str, list[str]] = {}
    others: dict[str, dict[str, list[str]]] = {}
    told = _words_of(owner)
    for claim in claims_of(owner):
        values, verdict, note = _row(claim, schema)
        if claim.name == CACHING:
            assert verdict == "ignored", owner
        elif claim.name in ("type", "role") and verdict == "yes" and told.startswith(claim.name):
            continue
        elif verdict == "yes":
            about = "; ".join(filter(None, (values, note)))
            yes.setdefault(about, []).append(f"`{claim.name}`")
        else:
            others.setdefault(verdict, {}).setdefault(note, []).append(f"`{claim.name}`")
    parts = [", ".join(_with(names, about) for about, names in yes.items())]
    for verdict, notes in others.items():
        said = ", ".join(_with(names, note) for note, names in notes.items())
        parts.append(f"{verdict}: {said}")
    if words := getattr(owner, "others", ""):
        parts.append(f"ignored: any other ({words})")
    return ". ".join(filter(None, parts))


def _with(names: Sequence[str], about: str) -> str:
    return ", ".join(names) + (f" ({about})" if about else "")


def _row(claim: Claim, schema: Mapping[str, Any]) -> Row:
    """Return a field's values, its verdict and the note."""
    values = _values(schema["properties"].get(claim.name, {}), schema) if claim.typed else ""
    verdict = {"honoured": "yes", "no effect": "ignored", "refused": "no"}.get(claim.standing)
    if verdict is None:
        verdict = "only " + (
            " or ".join(f"`{json.dumps(one)}`" for one in claim.accepted) or "`null`"
        )
    return values if verdict == "yes" else "", verdict, claim.words


def _words_of(owner: type[BaseModel]) -> str:
    """Return the role or type that tells an object from others in its place; empty if none does."""
    if named := getattr(owner, "named", ""):
        return str(named)
    for name in ("role", "type"):
        info = owner.model_fields.get(name)
        words = [] if info is None else [one for one in _literals(info.annotation) if one]
        if words:
            return f"{name} " + ", ".join(f"`{one}`" for one in words)
    return "of another type" if "type" in owner.model_fields else ""


def _literals(annotation: Any) -> Iterator[Any]:
    for part in get_args(annotation):
        if isinstance(part, str):
            yield part
        else:
            yield from _literals(part)


def _values(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return what values a field has, in words; empty for objects with a table of their own."""
    words = list(dict.fromkeys(word for word in _kinds(field, schema, 0) if word))
    return " or ".join(words)


def _kinds(field: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> Iterator[str]:
    for union in ("anyOf", "oneOf"):
        for member in field.get(union, ()):
            yield from _kinds(member, schema, depth)
    if "$ref" in field or {"anyOf", "oneOf"} & field.keys():
        return
    if "const" in field:
        yield f"`{json.dumps(field['const'])}`"
    elif "enum" in field:
        yield ", ".join(f"`{json.dumps(one)}`" for one in field["enum"])
    elif field.get("type") == "array":
        inner = " or ".join(dict.fromkeys(_kinds(field.get("items", {}), schema, depth + 1)))
        yield f"list of {inner}" if inner and "`" not in inner else "list"
    elif field.get("type") in ("integer", "number"):
        plural = "s" if depth else ""
        yield f"{field['type']}{plural}{_range(field)}"
    elif field.get("type") != "null":
        kind: str = field.get("type", "anything")
        word = {"string": "text", "array": "list"}.get(kind, kind)
        yield word + "s" if depth and word != "anything" else word


def _range(field: Mapping[str, Any]) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    above, below = field.get("exclusiveMinimum"), field.get("exclusiveMaximum")
    if below is not None and field["type"] == "integer" and below < 1 << 63:
        most = below - 1
    low = (
        f"{_number(least)}"
        if least is not None
        else f"above {_number(above)}"
        if above is not None
        else ""
    )
    high = (
        f"to {_number(most)}"
        if most is not None
        else f"to below {_number(below)}"
        if below is not None
        else ""
    )
    if not high:
        return f" from {low}" if least is not None else f" {low}" if low else ""
    return f" {low} {high}" if low else f" {high.removeprefix('to ')}"


def _number(value: float) -> str:
    """Return a number; one of 20 digits as a power of two, which it is."""
    if abs(value) >= 1 << 62:
        return f"{'-' if value < 0 else ''}2^{int(abs(value)).bit_length() - 1}"
    return f"{value:,.12g}" if isinstance(value, float) else f"{value:,}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"
