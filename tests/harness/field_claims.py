"""What each field of each body is said to do, read from the types that the parsers use.

A claim is about one field of one object: honoured, taken without effect, refused unless it asks for
nothing, or refused. The page (`fields_page`) tells the claims, and
`tests/gateway/dialects/test_fields.py` holds them to what the parsers do.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.dialects.body import ACCEPTED, EFFECT, Closed, FieldTable
from gateway.http.openapi import Route
from gateway.http.routes import ROUTES

Standing = Literal["honoured", "no effect", "refused unless", "refused"]
NONE = FieldTable()


@dataclass(frozen=True)
class Claim:
    """What is said of one field. `accepted` are the values, beside null, of `refused unless`.

    `typed`: the object's type has the field; else its table has it, and `words` is the reason.
    """

    owner: type[BaseModel]
    name: str
    standing: Standing
    words: str
    accepted: tuple[Any, ...] = ()
    typed: bool = True
    required: bool = False


@dataclass(frozen=True)
class Inside:
    """An object that stands in a field: `path` from its owner (`messages[]`)."""

    path: str
    kind: type[BaseModel]


def claims_of(owner: type[BaseModel]) -> tuple[Claim, ...]:
    """Return the claims about an object's fields: those of its type, then those of its table."""
    table = owner.table if issubclass(owner, Closed) else NONE
    typed = (_claim(owner, name, info) for name, info in owner.model_fields.items())
    neutral = (
        Claim(owner, name, "refused unless", "", accepted, typed=False)
        for name, accepted in table.neutral.items()
    )
    harmless = (
        Claim(owner, name, "no effect", why, typed=False) for name, why in table.harmless.items()
    )
    refused = (
        Claim(owner, name, "refused", why, typed=False) for name, why in table.refused.items()
    )
    return (*typed, *neutral, *harmless, *refused)


def insides_of(owner: type[BaseModel]) -> tuple[Inside, ...]:
    """Return the objects that stand in an object's fields, in order, each type of a field once."""
    apart: Mapping[str, type[BaseModel]] = owner.apart if issubclass(owner, Closed) else {}
    found: dict[Inside, None] = {}
    for name, info in owner.model_fields.items():
        told = info.alias or name
        if name in apart:
            found[Inside(told, apart[name])] = None
        for path, kind in _kinds_in(info.annotation, told):
            found[Inside(path, kind)] = None
    return tuple(found)


def bodies() -> dict[type[BaseModel], list[Route]]:
    """Return every body that a route takes, with its routes."""
    found: dict[type[BaseModel], list[Route]] = {}
    for route in ROUTES:
        if route.body is not None:
            found.setdefault(route.body, []).append(route)
    return found


def objects() -> tuple[type[BaseModel], ...]:
    """Return every object that stands in a body, the bodies themselves included, each once."""
    found: dict[type[BaseModel], None] = {}
    waiting = list(bodies())
    while waiting:
        owner = waiting.pop(0)
        if owner not in found:
            found[owner] = None
            waiting += [inside.kind for inside in insides_of(owner)]
    return tuple(found)


def _claim(owner: type[BaseModel], name: str, info: FieldInfo) -> Claim:
    extra = info.json_schema_extra
    told = cast(dict[str, Any], extra) if isinstance(extra, dict) else {}
    standing: Standing = "honoured"
    accepted: list[Any] | None = told.get(ACCEPTED)
    if EFFECT in told:
        standing = "no effect"
    elif accepted is not None:
        standing = "refused" if info.is_required() else "refused unless"
    values = tuple(accepted or ())
    words = info.description or ""
    required = info.is_required()
    return Claim(owner, info.alias or name, standing, words, values, required=required)


def _kinds_in(annotation: Any, path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the objects in an annotation, with their paths. Recursive."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield path, annotation
        return
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from _kinds_in(parts[0], path)
        return
    inside = f"{path}[]" if origin in (list, tuple) else f"{path}.*" if origin is dict else path
    for part in parts:
        yield from _kinds_in(part, inside)
