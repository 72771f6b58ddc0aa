"""Finds fields of a body that its type does not have. Misspellings are refused, and other fields
are reported.

Pure. A misspelling is one letter away from a known name of at least five letters, or two letters
away from one of at least nine. A name in a published schema (`published_fields`) is never a
misspelling, because the client meant that name. Keys in a conversation's turns are never
misspellings either, since clients send back every key that they received. A response header names
the fields without effect. A field whose value is null requests nothing and is not reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import cast
from urllib.parse import quote

from pydantic import BaseModel
from rapidfuzz.distance import OSA

from gateway.dialects.published_fields import PUBLISHED_FIELDS

CONVERSATION = ("messages", "input", "system")
"""The fields that hold a conversation."""
ONE_LETTER_FROM, TWO_LETTERS_FROM = 5, 9
"""The least number of letters of a known name, for a misspelling by one letter and by two letters.
"""
MAX_NAMED = 64
"""Maximum number of ignored fields of one body that are reported by name."""
HEADER = "x-shoal-ignored"
HEADER_BYTES = 1024
MORE = "+more"
"""Ends the value of a response header that has no room for all names. No name contains a plus sign,
because `quote` escapes it."""

_PLAIN = frozenset((str, int, float, bool, dict, type(None)))
"""Types of values without typed objects inside: most of a body, and cheap to check."""

Location = tuple[int | str, ...]


@cache
def known_names(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of a type's fields as clients write them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def slip_of(name: str, names: Iterable[str]) -> str | None:
    """Return the nearest known name that `name` misspells; None if there is none."""
    if name in PUBLISHED_FIELDS:
        return None
    matches = [
        (distance, candidate)
        for candidate in names
        if (distance := OSA.distance(name, candidate, score_cutoff=2)) <= _letters_off(candidate)
    ]
    return min(matches)[1] if matches else None


def unknown_within(model: BaseModel) -> Iterator[tuple[Location, type[BaseModel]]]:
    """Yield the location and the type of each unknown key whose value is not null, in the order of
    the body. Searches the objects inside a validated object, but not the object itself. The search
    is a loop, not a recursion."""
    waiting: list[tuple[Location, object]] = [((), model)]
    while waiting:
        location, value = waiting.pop()
        inner: list[tuple[Location, object]] = []
        if isinstance(value, BaseModel):
            if location:
                for name, extra in (value.model_extra or {}).items():
                    if extra is not None:
                        yield (*location, name), type(value)
            inner = [
                ((*location, name), child)
                for name, child in value.__dict__.items()
                if type(child) not in _PLAIN
            ]
        elif isinstance(value, list):
            items = cast(list[object], value)
            inner = [
                ((*location, index), item)
                for index, item in enumerate(items)
                if type(item) not in _PLAIN
            ]
        waiting.extend(reversed(inner))


def may_be_slip(location: Location) -> bool:
    """Return whether a key at this location may be a misspelling: it may, unless it is inside the
    conversation."""
    return location[0] not in CONVERSATION


def header_of(names: Sequence[str]) -> str:
    """Return the names as the value of a response header: escaped as in URLs, at most
    `HEADER_BYTES` long."""
    value = ""
    for name in names:
        more = f", {_escaped(name)}" if value else _escaped(name)
        if len(value) + len(more) > HEADER_BYTES - len(MORE) - 2:
            return f"{value}, {MORE}" if value else MORE
        value += more
    return value


def labels_of(names: Sequence[str]) -> Mapping[str, int]:
    """Return the number of ignored fields for each label of a metric. The label is the last key of
    the field's path if a published schema has that key. Otherwise it is `other`, so that clients
    cannot create new labels."""
    counts: dict[str, int] = {}
    for name in names:
        key = name.rpartition(".")[2]
        label = key if key in PUBLISHED_FIELDS else "other"
        counts[label] = counts.get(label, 0) + 1
    return counts


def _escaped(name: str) -> str:
    return quote(name, safe="[]", errors="replace")


def _letters_off(name: str) -> int:
    letters = sum(character.isalpha() for character in name)
    if letters >= TWO_LETTERS_FROM:
        return 2
    return 1 if letters >= ONE_LETTER_FROM else -1
