"""Fields that a body has and its type has not: what is a slip is refused, the rest is named.

Pure. A slip is a name one letter away from a known one of at least five letters, two from nine
letters on, unless the name stands in a published schema of a dialect that we speak
(`published_fields`): then a client meant it. Keys of a conversation's turns are never slips, for
clients send back all that they know of them. What is taken without effect is named to the client in
a header; null asks for nothing, and is not named.
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
"""Letters of a known name that other names may be slips of, by one letter and by two."""
MAX_NAMED = 64
"""Ignored fields of one body that are remembered by name."""
HEADER = "x-shoal-ignored"
HEADER_BYTES = 1024
MORE = "+more"
"""Ends a header that has no room for all names; `quote` leaves no plus sign in a name."""

_PLAIN = frozenset((str, int, float, bool, dict, type(None)))
"""Types of values that hold no objects with a type: most of a body, and told apart cheaply."""

Location = tuple[int | str, ...]


@cache
def known_names(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of a type's fields as clients write them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def slip_of(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is a slip of, the nearest first; None if it is none."""
    if name in PUBLISHED_FIELDS:
        return None
    found = [
        (distance, candidate)
        for candidate in known
        if (distance := OSA.distance(name, candidate, score_cutoff=2)) <= _letters_off(candidate)
    ]
    return min(found)[1] if found else None


def unknown_within(model: BaseModel) -> Iterator[tuple[Location, type[BaseModel]]]:
    """Yield where the objects inside of a validated one have keys that their types do not know and
    that are not null, with the type; not the outermost object's own. In order, not recursive."""
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
                ((*location, name), held)
                for name, held in value.__dict__.items()
                if type(held) not in _PLAIN
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
    """Return whether a key there may be a slip: it is not a conversation's."""
    return location[0] not in CONVERSATION


def header_of(names: Sequence[str]) -> str:
    """Return the names as a header's value: escaped as in URLs, `HEADER_BYTES` at most."""
    said = ""
    for name in names:
        more = f", {_escaped(name)}" if said else _escaped(name)
        if len(said) + len(more) > HEADER_BYTES - len(MORE) - 2:
            return f"{said}, {MORE}" if said else MORE
        said += more
    return said


def labels_of(names: Sequence[str]) -> Mapping[str, int]:
    """Return how many of the ignored fields go by each label of a counter: the last key of a path
    where it is published, `other` where it is not."""
    found: dict[str, int] = {}
    for name in names:
        key = name.rpartition(".")[2]
        label = key if key in PUBLISHED_FIELDS else "other"
        found[label] = found.get(label, 0) + 1
    return found


def _escaped(name: str) -> str:
    return quote(name, safe="[]", errors="replace")


def _letters_off(known: str) -> int:
    letters = sum(character.isalpha() for character in known)
    if letters >= TWO_LETTERS_FROM:
        return 2
    return 1 if letters >= ONE_LETTER_FROM else -1
