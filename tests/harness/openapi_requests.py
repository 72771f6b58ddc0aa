"""Requests made from an OpenAPI document: as it allows them, a little off, or far out of bounds.

Everything comes from one `random.Random`, so that a run can be repeated by its seed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

ODD_TEXTS = (
    "", " ", "\n", "\x00", "\u2028", "a" * 5_000, "../../etc/passwd", "%00", "²", "💥", "null",
    "-1", "nan", "inf", "9" * 400, "{{ 7 * 7 }}", "[::1", "req-n1-h²-b-1",
)  # fmt: skip
ODD_NUMBERS = (
    0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e-320, 1e300, -1e300,
)  # fmt: skip
DEEPEST = 5


@dataclass(frozen=True)
class GeneratedRequest:
    """One request; `documented` are the statuses that the document names for it."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes | None
    documented: frozenset[int]


class OpenApiRequests:
    """Makes requests of a document's operations."""

    def __init__(
        self, document: dict[str, Any], chance: random.Random, known: dict[str, tuple[Any, ...]]
    ) -> None:
        """`known` gives values by the name of a field or parameter, for two in three of them."""
        self._document, self._chance, self._known = document, chance, known
        self._operations = [
            (method.upper(), path, operation)
            for path, operations in sorted(document["paths"].items())
            for method, operation in sorted(operations.items())
        ]

    def one(self) -> GeneratedRequest:
        """Return a request of any operation."""
        method, path, operation = self._chance.choice(self._operations)
        query: dict[str, str] = {}
        for parameter in operation.get("parameters", ()):
            name, schema = parameter["name"], parameter.get("schema", {})
            value = self._text(self._value(name, schema, 0))
            if parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", value.replace("/", "%2F") or "x")
            elif parameter.get("required") or self._chance.random() < 0.5:
                query[name] = value
        body = None
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None:
            body = json.dumps(self._value("", content.get("schema", {}), 0)).encode()
        documented = frozenset(int(one) for one in operation["responses"] if one.isdigit())
        return GeneratedRequest(method, path, query, body, documented)

    def malformed(self, largest: int) -> bytes:
        """Return the bytes of a body that is cut off, changed, of no known type, or large."""
        chance = self._chance
        body = bytearray(self.one().body or b'{"model":"x"}')
        match chance.randrange(6):
            case 0:
                del body[chance.randrange(len(body)) :]
            case 1:
                for _ in range(1 + len(body) // 50):
                    body[chance.randrange(len(body))] = chance.randrange(256)
            case 2:
                body = bytearray(b"[" * chance.randrange(1, 200_000))
            case 3:
                piece = chance.choice([b'{"role":5},', b"1,", b'"a",', b"[],", b'{"a":1},'])
                count = chance.randrange(1, largest // len(piece))
                return b'{"model":"shoal-tiny","messages":[' + piece * count + b"0]}"
            case 4:
                body = bytearray(chance.randbytes(chance.randrange(1, 5_000)))
            case _:
                names = (b'"k%d":0,' % n for n in range(chance.randrange(1, largest // 12)))
                return b'{"model":"shoal-tiny",' + b"".join(names) + b'"z":0}'
        return bytes(body)

    def _value(self, name: str, schema: dict[str, Any], depth: int) -> Any:
        chance = self._chance
        if name in self._known and chance.random() < 2 / 3:
            return chance.choice(self._known[name])
        if chance.random() < 0.04:
            return chance.choice([None, True, [], {}, *ODD_TEXTS, *ODD_NUMBERS])
        if "$ref" in schema:
            return self._value(name, self._at(schema["$ref"]), depth)
        for union in ("anyOf", "oneOf", "allOf"):
            if union in schema:
                return self._value(name, chance.choice(schema[union]), depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return chance.choice(schema["enum"])
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                most = 0 if depth > DEEPEST else 3
                items = schema.get("items", {})
                return [self._value(name, items, depth + 1) for _ in range(chance.randint(0, most))]
            case "integer":
                return chance.choice([chance.randint(-3, 40), *ODD_NUMBERS[:6]])
            case "number":
                return chance.choice([chance.uniform(-1, 3), *ODD_NUMBERS])
            case "boolean":
                return chance.random() < 0.5
            case "null":
                return None
            case _:
                return chance.choice(["hello", "Count from 1 to 5.", *ODD_TEXTS])

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        chance = self._chance
        made: dict[str, Any] = {}
        required = schema.get("required", ())
        for name, inner in schema.get("properties", {}).items():
            if chance.random() < (0.97 if name in required else 0.15 if depth < DEEPEST else 0.0):
                made[name] = self._value(name, inner, depth + 1)
        if chance.random() < 0.05:
            made[chance.choice(["x_timeout_s", "x_priority", "unknown", "", "💥"])] = 1
        return made

    def _at(self, pointer: str) -> dict[str, Any]:
        found: Any = self._document
        for step in pointer.removeprefix("#/").split("/"):
            found = found[step]
        return found

    @staticmethod
    def _text(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)
