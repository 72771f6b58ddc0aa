"""Go's values in a template, as Python has them: what is true, equal, less, and how each is shown.

Pure. None is nil, int and float are Go's 64-bit ones, a list is a slice, a dict a map, whose keys
are told in their order, a `GoStruct` a struct. Text is counted and cut in bytes, as in Go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

SHOWN_AT_MOST = 8 << 20
"""Characters of any one text."""


class GoValueError(Exception):
    """A function cannot be given these values."""


class GoStruct:
    """A value with named fields. `form` is what `json` makes of it, `speaks`: it is shown so."""

    __slots__ = ("fields", "form", "speaks")

    def __init__(self, fields: Mapping[str, Any], form: Any, *, speaks: bool = False) -> None:
        self.fields = fields
        self.form = form
        self.speaks = speaks


class SpokenMap(dict[str, Any]):
    """A map that is shown as JSON."""


class SpokenList(list[Any]):
    """A slice that is shown as JSON."""


class Ordered(dict[str, Any]):
    """What `json` makes of a struct: its fields in their own order."""


def speaks(value: Any) -> bool:
    """Return whether a value is shown as JSON."""
    return isinstance(value, SpokenMap | SpokenList) or (
        isinstance(value, GoStruct) and value.speaks
    )


def is_true(value: Any) -> bool:
    """Return whether a value counts as true: not nil, zero or empty; a struct always."""
    return isinstance(value, GoStruct) or bool(value)


def shown(value: Any) -> str:
    """Return a value as `print` shows it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value, largest=1e6, smallest=1e-4)
    if speaks(value):
        return as_json(value)
    if isinstance(value, GoStruct):
        return "{" + " ".join(map(shown, value.fields.values())) + "}"
    if isinstance(value, dict):
        known = cast(dict[str, Any], value)
        return "map[" + " ".join(f"{key}:{shown(known[key])}" for key in sorted(known)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(shown, cast(list[Any], value))) + "]"
    return "<nil>"


def as_json(value: Any) -> str:
    """Return a value as Go's JSON: no blanks, keys of maps in order, `<`, `>` and `&` escaped."""
    written = _written(value)
    for sign in "<>&\u2028\u2029":
        if sign in written:
            written = written.replace(sign, f"\\u{ord(sign):04x}")
    return written


def _written(value: Any) -> str:
    if isinstance(value, GoStruct):
        return _written(value.form)
    if isinstance(value, Ordered):
        return "{" + ",".join(f"{_quoted(key)}:{_written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, dict):
        known = cast(dict[str, Any], value)
        return (
            "{" + ",".join(f"{_quoted(key)}:{_written(known[key])}" for key in sorted(known)) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(_written, cast(list[Any], value))) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return _float(value, largest=1e21, smallest=1e-6).replace("e-0", "e-")
    return "null" if value is None else shown(value)


def _quoted(text: str) -> str:
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)


_ESCAPED = {
    "\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v",
    "\\": r"\\",
}  # fmt: skip


def quoted(text: str, *, in_ascii: bool = False) -> str:
    """Return a text in quotes, as Go writes it in programs."""
    return '"' + "".join(_escaped(sign, '"', in_ascii=in_ascii) for sign in text) + '"'


def quoted_sign(sign: str, *, in_ascii: bool = False) -> str:
    """Return one character in quotes, as Go writes it in programs."""
    return "'" + _escaped(sign, "'", in_ascii=in_ascii) + "'"


def _escaped(sign: str, quote: str, *, in_ascii: bool) -> str:
    if sign == quote or sign in _ESCAPED:
        return _ESCAPED.get(sign, "\\" + sign)
    code = ord(sign)
    if sign.isprintable() and (code < 128 or not in_ascii):
        return sign
    if code < 128:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _float(value: float, *, largest: float, smallest: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[repr(value)]
    size = abs(value)
    if size == 0 or smallest <= size < largest:
        text = format(Decimal(repr(value)), "f")
        return text.removesuffix(".0")
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        mantissa, _, exponent = format(Decimal(repr(value)).normalize(), "e").partition("e")
        exponent = f"{int(exponent):+03d}"
    return f"{mantissa.removesuffix('.0')}e{exponent}"


def type_name(value: Any) -> str:
    """Return what Go calls the type of a value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, GoStruct):
        return "struct"
    if isinstance(value, list):
        return "[]interface {}"
    names = {"int": "int", "float": "float64", "str": "string", "NoneType": "<nil>"}
    return names.get(type(value).__name__, "map[string]interface {}")


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal. Raises GoValueError for those that cannot be compared:
    of different kinds, or lists, maps and structs."""
    if one is None or other is None:
        return one is other
    kinds = type_name(one), type_name(other)
    if kinds[0] not in ("bool", "int", "float64", "string") or kinds[1] not in (
        "bool", "int", "float64", "string",
    ):  # fmt: skip
        raise GoValueError(f"{kinds[0]} and {kinds[1]} are not comparable")
    if kinds[0] != kinds[1]:
        raise GoValueError(f"incompatible types for comparison: {kinds[0]} and {kinds[1]}")
    return one == other


def is_less(one: Any, other: Any) -> bool:
    """Return whether one value is less than another. Raises GoValueError as `is_equal` does, and
    for what has no order."""
    kinds = type_name(one), type_name(other)
    if not set(kinds) <= {"int", "float64", "string"}:
        raise GoValueError(f"invalid types for comparison: {kinds[0]} and {kinds[1]}")
    if kinds[0] != kinds[1]:
        raise GoValueError(f"incompatible types for comparison: {kinds[0]} and {kinds[1]}")
    if isinstance(one, str):
        return one.encode("utf-8", "surrogatepass") < other.encode("utf-8", "surrogatepass")
    return one < other
