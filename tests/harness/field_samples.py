"""Values that a field's schema allows, a few of each kind; made of JSON schema, without chance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, cast

from pydantic import BaseModel

DEEPEST = 4
FREE: tuple[Any, ...] = ("x", 1, True, {"a": 1}, [1])
TEXTS = ("x", "name", "5m", "1")


def samples_of(owner: type[BaseModel], name: str) -> list[Any]:
    """Return values of a field that its object's schema allows; none of them null."""
    schema = schema_of(owner)
    field = schema["properties"].get(name, {})
    made: list[Any] = []
    for value in _values(field, schema.get("$defs", {}), 0):
        if value is not None and not any(same(value, other) for other in made):
            made.append(value)
    return made


@cache
def schema_of(owner: type[BaseModel]) -> dict[str, Any]:
    """Return an object's JSON schema, made once."""
    return owner.model_json_schema()


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same; true is not 1."""
    return type(one) is type(other) and one == other


def _values(schema: dict[str, Any], named: dict[str, Any], depth: int) -> Iterator[Any]:
    """Yield values that fit. Recursive, as deep as bodies are."""
    if "$ref" in schema:
        yield from _values(named[schema["$ref"].rpartition("/")[2]], named, depth)
        return
    for union in ("anyOf", "oneOf"):
        for member in schema.get(union, ()):
            yield from _values(member, named, depth)
    if "const" in schema:
        yield schema["const"]
    elif "enum" in schema:
        yield from schema["enum"]
    elif not {"anyOf", "oneOf"} & schema.keys():
        yield from _typed(schema, named, depth)


def _typed(schema: dict[str, Any], named: dict[str, Any], depth: int) -> Iterator[Any]:
    match schema.get("type"):
        case "boolean":
            yield from (True, False)
        case "integer":
            yield from (one for one in (0, 1, 2, 7, 1000) if _in_range(one, schema))
        case "number":
            yield from (one for one in (0.0, 0.25, 0.5, 1.5, -1.5) if _in_range(one, schema))
        case "string":
            yield from TEXTS
        case "array":
            yield from _lists(schema, named, depth)
        case "object":
            yield from _objects(schema, named, depth)
        case "null":
            pass
        case _:
            yield from FREE


def _in_range(value: float, schema: dict[str, Any]) -> bool:
    least, most = schema.get("minimum", value), schema.get("maximum", value)
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return (
        least <= value <= most
        and (above is None or value > above)
        and (below is None or value < below)
    )


def _lists(schema: dict[str, Any], named: dict[str, Any], depth: int) -> Iterator[Any]:
    if not schema.get("minItems"):
        yield []
    if depth < DEEPEST:
        for value in _values(schema.get("items", {}), named, depth + 1):
            yield [value]


def _objects(schema: dict[str, Any], named: dict[str, Any], depth: int) -> Iterator[Any]:
    fields = schema.get("properties")
    if fields is None:
        more = schema.get("additionalProperties")
        inner: dict[str, Any] = cast(dict[str, Any], more) if isinstance(more, dict) else {}
        for value in _values(inner, named, depth + 1):
            yield {"5": value}
        return
    if depth >= DEEPEST:
        return
    required = set(schema.get("required", ()))
    firsts = {name: next(_values(inner, named, depth + 1), "x") for name, inner in fields.items()}
    least = {name: firsts[name] for name in fields if name in required}
    yield least
    for name, value in firsts.items():
        if name not in least:
            yield {**least, name: value}
