"""JSON bytes without the characters that some clients take for a line break.

Pure. JSON allows U+0085, U+2028 and U+2029 unescaped in strings. Clients that split a stream with
`str.splitlines`, such as the official `ollama`, take these characters for line breaks. So this
module escapes them. It also limits log-probabilities to finite numbers, since JSON has no
infinities.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, from_json

from bus.wire.messages.tokens import TokenLogprob

LEAST_LOGPROB = -9999.0
"""The log-probability that OpenAI's API reference uses for "impossible"."""

_LONG_NUMBER = re.compile(r"[0-9]{19}")
"""Finds digits that may not fit into 64 bits: a number with fewer consecutive digits fits."""
_BREAKS = re.compile(rb"\xc2\x85|\xe2\x80[\xa8\xa9]")
_ESCAPES = {b"\xc2\x85": b"\\u0085", b"\xe2\x80\xa8": b"\\u2028", b"\xe2\x80\xa9": b"\\u2029"}


@dataclass(frozen=True, slots=True)
class Dump:
    """An annotation for a plain object made by `model_dump(mode="json")`. Its JSON schema is the
    schema of `model` without the fields `without`. `adds` are the names and JSON types of
    additional fields. `model` may be a dataclass."""

    model: type
    without: frozenset[str] = frozenset()
    adds: tuple[tuple[str, str], ...] = ()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the model's schema."""
        return handler.generate_schema(self.model)

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the model's schema with the fields removed and added."""
        shown = handler(core_schema)
        if not (self.without or self.adds):
            return shown
        whole = handler.resolve_ref_schema(shown)
        fields = {
            name: schema for name, schema in whole["properties"].items() if name not in self.without
        }
        needed = [name for name in whole.get("required", ()) if name in fields]
        fields |= {name: {"type": kind} for name, kind in self.adds}
        needed += [name for name, _ in self.adds]
        return {**whole, "properties": fields, "required": needed}


def _escaped(match: re.Match[bytes]) -> bytes:
    return _ESCAPES[match.group()]


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether the arrays and objects in a JSON value are nested deeper than `levels`."""
    level: list[Any] = [value]
    for _ in range(levels):
        level = [
            child
            for node in level
            for child in (cast(dict[str, Any], node).values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def text_bytes(text: str) -> bytes:
    """Return `text` as a JSON string in quotes, without any character that a client could take for
    a line break."""
    # the three characters are neither ASCII nor printable, and both checks are cheap
    if text.isascii() or text.isprintable():
        return orjson.dumps(text)
    return _BREAKS.sub(_escaped, orjson.dumps(text))


def json_bytes(value: Any) -> bytes:
    """Return `value` as JSON on one line; keys in the order given."""
    data = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    return data if data.isascii() else _BREAKS.sub(_escaped, data)


def arguments_object(text: str) -> dict[str, Any] | orjson.Fragment | None:
    """Return a call's arguments as an object for `json_bytes`; None if `text` is not a JSON object.

    Integers beyond 64 bits, which orjson would round, keep their value.
    """
    try:
        value = orjson.loads(text or "{}")
        if not isinstance(value, dict):
            return None
        if _LONG_NUMBER.search(text):
            return orjson.Fragment(json.dumps(json.loads(text)))
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], value)


def partial_object(text: str) -> dict[str, Any] | orjson.Fragment:
    """Return the members of truncated JSON arguments that are complete, which is also what a client
    that parses the stream would have. If no member is complete, return an empty object."""
    whole = arguments_object(text)
    if whole is not None:
        return whole
    try:
        value = from_json(text, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    members = cast(dict[str, Any], value)
    return orjson.Fragment(json.dumps(members)) if _LONG_NUMBER.search(text) else members


def vector_list(vector: bytes) -> orjson.Fragment:
    """Return 32-bit floats, little-endian, as an array of numbers for `json_bytes`. NaN and
    infinities become null."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return orjson.Fragment(orjson.dumps(numbers.tolist()))


def finite_logprob(logprob: float) -> float:
    """Return `logprob`, or -9999.0 if it is minus infinity or NaN."""
    return max(LEAST_LOGPROB, logprob)


def logprobs_list(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return the log-probabilities of a text's tokens, in the form that all dialects but one
    use."""
    return [
        {
            "token": token.text,
            "logprob": finite_logprob(token.logprob),
            "bytes": token_bytes(token.text),
            "top_logprobs": [
                {"token": text, "logprob": finite_logprob(logprob), "bytes": token_bytes(text)}
                for _, text, logprob in token.top
            ],
        }
        for token in logprobs
    ]


def token_bytes(text: str) -> list[int] | None:
    """Return a token's UTF-8 bytes, or None if the token is only part of a character."""
    return None if "\ufffd" in text else list(text.encode())
