"""The functions of Go's templates, and those that Ollama adds. Pure; all raise GoValueError.

Left out is `call`, for nothing that a template is given can be called. `and` and `or` look at no
more arguments than they need, and are the evaluator's. What is made is bounded (`SHOWN_AT_MOST`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote_plus

from bus.wire.go_templates.printf import printf
from bus.wire.go_templates.values import (
    SHOWN_AT_MOST,
    GoStruct,
    GoValueError,
    as_json,
    is_equal,
    is_less,
    is_true,
    shown,
    type_name,
)

Arguments = Sequence[Any]
Function = Callable[[Arguments], Any]
ARITIES: Mapping[str, tuple[int, int | None]] = {
    "and": (1, None), "or": (1, None), "not": (1, 1),
    "eq": (2, None), "ne": (2, 2), "lt": (2, 2), "le": (2, 2), "gt": (2, 2), "ge": (2, 2),
    "len": (1, 1), "index": (1, None), "slice": (1, 4),
    "print": (0, None), "printf": (1, None), "println": (0, None),
    "html": (0, None), "js": (0, None), "urlquery": (0, None),
    "json": (1, 1), "toTypeScriptType": (1, 1),
    "currentDate": (0, None), "yesterdayDate": (0, None),
}  # fmt: skip
"""How many arguments each takes, at least and at most."""
_HTML = {'"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;", "\0": "\ufffd"}
_JS = {
    "\\": r"\\", "'": r"\'", '"': r"\"", "<": r"\u003C", ">": r"\u003E", "&": r"\u0026",
    "=": r"\u003D",
}  # fmt: skip
_TYPESCRIPT = {
    "string": "string", "number": "number", "integer": "number", "boolean": "boolean",
    "array": "any[]", "object": "Record<string, any>", "null": "null",
}  # fmt: skip


def functions_on(today: datetime.date) -> Mapping[str, Function]:
    """Return all functions by name but `and` and `or`; `today` is the date that they know."""
    yesterday = today - datetime.timedelta(days=1)
    return {
        **_FUNCTIONS,
        "currentDate": lambda _: today.isoformat(),
        "yesterdayDate": lambda _: yesterday.isoformat(),
    }


def bounded(text: str) -> str:
    """Return the text. Raises GoValueError for one that is too long."""
    if len(text) > SHOWN_AT_MOST:
        raise GoValueError(f"it makes a text of more than {SHOWN_AT_MOST >> 20} MiB")
    return text


def _equal(given: Arguments) -> bool:
    return any(is_equal(given[0], other) for other in given[1:])


def _less_or_equal(given: Arguments) -> bool:
    return is_less(given[0], given[1]) or is_equal(given[0], given[1])


def _length(given: Arguments) -> int:
    value = given[0]
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list | dict):
        return len(cast(list[Any], value))
    raise GoValueError(f"len of type {type_name(value)}")


def _index(given: Arguments) -> Any:
    value: Any = given[0]
    if value is None:
        raise GoValueError("cannot index nil")
    for place in given[1:]:
        if isinstance(value, dict):
            if not isinstance(place, str):
                raise GoValueError(f"cannot index a map with {type_name(place)}")
            value = cast(dict[str, Any], value).get(place)
        elif isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
            value = data[_place(place, len(data) - 1)]
        elif isinstance(value, list):
            items = cast(list[Any], value)
            value = items[_place(place, len(items) - 1)]
        else:
            raise GoValueError(f"cannot index a value of type {type_name(value)}")
    return value


def _slice(given: Arguments) -> Any:
    value, *places = given
    if isinstance(value, str):
        if len(places) > 2:
            raise GoValueError("cannot slice a string with three places")
        data = value.encode("utf-8", "surrogatepass")
        first, last = _bounds(places, len(data))
        return data[first:last].decode("utf-8", "replace")
    if isinstance(value, list):
        items = cast(list[Any], value)
        first, last = _bounds(places, len(items))
        return items[first:last]
    raise GoValueError(f"cannot slice a value of type {type_name(value)}")


def _bounds(places: Sequence[Any], length: int) -> tuple[int, int]:
    bounds = [_place(place, length) for place in places]
    if bounds != sorted(bounds):
        raise GoValueError(f"invalid slice: {' > '.join(map(str, bounds))}")
    first, last = (*bounds, *(0, length)[len(bounds) :])[:2]
    return first, last


def _place(place: Any, last: int) -> int:
    if isinstance(place, bool) or not isinstance(place, int):
        raise GoValueError(f"cannot index with type {type_name(place)}")
    if not 0 <= place <= last:
        raise GoValueError(f"index out of range: {place}")
    return place


def _print(given: Arguments) -> str:
    parts: list[str] = []
    for place, value in enumerate(given):
        apart = place and not isinstance(value, str) and not isinstance(given[place - 1], str)
        parts += [" ", shown(value)] if apart else [shown(value)]
    return bounded("".join(parts))


def _escaped(signs: Mapping[str, str]) -> Function:
    table = str.maketrans(dict(signs))
    return lambda given: bounded(_print_all(given).translate(table))


def _print_all(given: Arguments) -> str:
    """Return the values as the functions that escape are given them: nil is no value."""
    return _print(["<no value>" if value is None else value for value in given])


def _script(given: Arguments) -> str:
    """Return the values as text that can stand in a string of JavaScript."""
    return bounded(
        "".join(
            _JS.get(sign) or (sign if sign.isprintable() else f"\\u{ord(sign):04X}")
            for sign in _print_all(given)
        )
    )


def _printf(given: Arguments) -> str:
    form, *values = given
    if not isinstance(form, str):
        raise GoValueError(f"printf begins with a string, not with {type_name(form)}")
    return bounded(printf(form, values))


def _typescript(given: Arguments) -> str:
    """Return the type of a tool's parameter in TypeScript's words."""
    value = given[0]
    if not isinstance(value, GoStruct):
        return "any"
    several = value.fields.get("AnyOf")
    if several:
        return " | ".join(_typescript([one]) for one in several)
    said = value.fields.get("Type")
    kinds = cast(list[Any], said) if isinstance(said, list) else [said] if said else []
    return " | ".join(_TYPESCRIPT.get(str(kind), "any") for kind in kinds) or "any"


_FUNCTIONS: Mapping[str, Function] = {
    "not": lambda given: not is_true(given[0]),
    "eq": _equal,
    "ne": lambda given: not is_equal(given[0], given[1]),
    "lt": lambda given: is_less(given[0], given[1]),
    "le": _less_or_equal,
    "gt": lambda given: not _less_or_equal(given),
    "ge": lambda given: not is_less(given[0], given[1]),
    "len": _length,
    "index": _index,
    "slice": _slice,
    "print": _print,
    "println": lambda given: bounded(" ".join(map(shown, given)) + "\n"),
    "printf": _printf,
    "html": _escaped(_HTML),
    "js": _script,
    "urlquery": lambda given: bounded(quote_plus(_print_all(given), safe="", errors="replace")),
    "json": lambda given: bounded(as_json(given[0])),
    "toTypeScriptType": _typescript,
}
