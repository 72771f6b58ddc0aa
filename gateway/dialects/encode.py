"""JSON bytes that survive every client's idea of a line.

Pure. JSON allows U+0085, U+2028 and U+2029 as they stand inside strings, but clients that
split a stream with `str.splitlines` (the official `ollama` one among them) break there, so
they leave here escaped. Log-probabilities leave finite, because JSON has no infinities.
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
"""Stands for "impossible", as OpenAI's reference says."""

_LONG_NUMBER = re.compile(r"[0-9]{19}")
"""What has fewer digits in a row fits into 64 bits."""
_BREAKS = re.compile(rb"\xc2\x85|\xe2\x80[\xa8\xa9]")
_ESCAPES = {b"\xc2\x85": b"\\u0085", b"\xe2\x80\xa8": b"\\u2028", b"\xe2\x80\xa9": b"\\u2029"}


@dataclass(frozen=True, slots=True)
class Dump:
    """Annotates a plain object that `model_dump(mode="json")` made: its schema is the model's, but
    for the fields `without`. `adds` are names and types of what stands
    beside its fields. The model may be a dataclass whose fields are told by their names."""

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
        """Return the model's schema, or what is left of it."""
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


def text_bytes(text: str) -> bytes:
    """Return `text` as a JSON string, quotes included, without a byte that could end a line."""
    # the three are outside ASCII and none is printable: both questions are nearly free
    if text.isascii() or text.isprintable():
        return orjson.dumps(text)
    return _BREAKS.sub(_escaped, orjson.dumps(text))


def json_bytes(value: Any) -> bytes:
    """Return `value` as JSON on one line; keys in the order given."""
    data = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    return data if data.isascii() else _BREAKS.sub(_escaped, data)


def arguments_object(text: str) -> dict[str, Any] | orjson.Fragment | None:
    """Return a call's arguments as an object that `json_bytes` writes; None for text that is none.

    Whole numbers beyond 64 bits, which orjson would round, stay what they are.
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
    """Return what is whole in arguments that break off, as clients of streams read them: members
    without the last one where that is not complete. An empty object where there are none."""
    whole = arguments_object(text)
    if whole is not None:
        return whole
    try:
        value = from_json(text, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    found = cast(dict[str, Any], value)
    return orjson.Fragment(json.dumps(found)) if _LONG_NUMBER.search(text) else found


def vector_list(vector: bytes) -> orjson.Fragment:
    """Return 32-bit floats, the least byte first, as an array of numbers that `json_bytes` writes.
    What is not finite is null."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return orjson.Fragment(orjson.dumps(numbers.tolist()))


def finite_logprob(logprob: float) -> float:
    """Return `logprob`, or -9999.0 where it is minus infinity or not a number."""
    return max(LEAST_LOGPROB, logprob)


def logprobs_list(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return the log-probabilities of some text, in the shape that all but one dialect have."""
    return [
        {
            "token": one.text,
            "logprob": finite_logprob(one.logprob),
            "bytes": token_bytes(one.text),
            "top_logprobs": [
                {"token": text, "logprob": finite_logprob(logprob), "bytes": token_bytes(text)}
                for _, text, logprob in one.top
            ],
        }
        for one in logprobs
    ]


def token_bytes(text: str) -> list[int] | None:
    """Return the UTF-8 bytes of a token, or None for one that is only part of a character."""
    return None if "\ufffd" in text else list(text.encode())
