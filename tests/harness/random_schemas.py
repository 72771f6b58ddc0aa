"""Schemas drawn by a seed: nested objects, arrays, enums, references, numbers, patterns.

Every one bounds what obeys it, so that most answers end by themselves.
"""

from __future__ import annotations

import random
from typing import Any

WORDS = ("sea", "boat", "fish", "red", "north", "ü", "a b", 'q"', "", "list")
PATTERNS = (
    r"^[a-z]{2,6}$",
    r"^[A-Z]{2}-[0-9]{3}$",
    r"^(red|blue|green)( fish)?$",
    r"^[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]$",
    r"^#[0-9a-f]{6}$",
)
DEEPEST = 3


def random_schema(seed: int) -> dict[str, Any]:
    """A schema of an object; the same for the same seed."""
    chance = random.Random(seed)
    shared = [f"kind{index}" for index in range(chance.randint(0, 2))]
    made = _object(chance, 0, shared)
    if shared:
        # what is shared refers to nothing: chains of references are bounded
        made["$defs"] = {name: _schema(chance, DEEPEST - 1, []) for name in shared}
    return made


def kinds_within(schema: Any) -> set[str]:
    """The keywords that stand anywhere in a schema."""
    if isinstance(schema, list):
        return set().union(*map(kinds_within, schema))
    if not isinstance(schema, dict):
        return set()
    return set(schema).union(*map(kinds_within, schema.values()))


def _schema(chance: random.Random, depth: int, shared: list[str]) -> dict[str, Any]:
    makers = [_string, _pattern, _integer, _number, _enum, _constant, _boolean]
    if depth < DEEPEST:
        makers += [_either, _array, _array, _object, _object]
    if shared and chance.random() < 0.3:
        return {"$ref": f"#/$defs/{chance.choice(shared)}"}
    return chance.choice(makers)(chance, depth, shared)


def _object(chance: random.Random, depth: int, shared: list[str]) -> dict[str, Any]:
    names = chance.sample(WORDS[:-2], chance.randint(1, 4 - min(depth, 2)))
    required = [name for name in names if chance.random() < 0.7]
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: _schema(chance, depth + 1, shared) for name in names},
        "required": required,
    }
    if chance.random() < 0.6:
        made["additionalProperties"] = False
    return made


def _array(chance: random.Random, depth: int, shared: list[str]) -> dict[str, Any]:
    least = chance.randint(0, 2)
    return {
        "type": "array",
        "items": _schema(chance, depth + 1, shared),
        "minItems": least,
        "maxItems": least + chance.randint(0, 2),
    }


def _either(chance: random.Random, depth: int, shared: list[str]) -> dict[str, Any]:
    return {"anyOf": [_schema(chance, depth + 1, shared), {"type": "null"}]}


def _string(chance: random.Random, _depth: int, _shared: list[str]) -> dict[str, Any]:
    return {"type": "string", "minLength": chance.randint(0, 2), "maxLength": chance.randint(3, 9)}


def _pattern(chance: random.Random, _depth: int, _shared: list[str]) -> dict[str, Any]:
    return {"type": "string", "pattern": chance.choice(PATTERNS)}


def _integer(chance: random.Random, _depth: int, _shared: list[str]) -> dict[str, Any]:
    least = chance.randint(-1000, 1000)
    return {"type": "integer", "minimum": least, "maximum": least + chance.randint(0, 5000)}


def _number(chance: random.Random, _depth: int, _shared: list[str]) -> dict[str, Any]:
    least = round(chance.uniform(-10, 10), 2)
    return {"type": "number", "minimum": least, "maximum": round(least + 20, 2)}


def _enum(chance: random.Random, _depth: int, _shared: list[str]) -> dict[str, Any]:
    return {"enum": [*chance.sample(WORDS, 3), chance.randint(0, 99), None, True]}


def _constant(chance: random.Random, _depth: int, _shared: list[str]) -> dict[str, Any]:
    return {"const": chance.choice([*WORDS, 7, False, None])}


def _boolean(_chance: random.Random, _depth: int, _shared: list[str]) -> dict[str, Any]:
    return {"type": "boolean"}
