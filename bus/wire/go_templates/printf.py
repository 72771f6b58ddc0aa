"""Go's `fmt.Sprintf`, for the values of templates. Pure.

The verbs v, s, q, d, x, X, o, b, c, U, t, e, E, f, F, g, G and %, with flags, width and precision;
what does not fit is told in the text, as Go does it. A width of a star is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from bus.wire.go_templates.values import GoValueError, as_json, shown, type_name

WIDEST = 10_000
_VERB = re.compile(r"%([-+# 0]*)(\d+|\*)?(?:\.(\d+|\*)?)?([^\W_]|%|$|.)", re.DOTALL)
_WHOLE = {"d": "d", "o": "o", "b": "b", "x": "x", "X": "X"}
_FRACTIONS = "eEfFgG"


def printf(form: str, values: Sequence[Any]) -> str:
    """Return the text of a form. Raises GoValueError for a width that is not taken."""
    left = list(values)
    made: list[str] = []
    place = 0
    for found in _VERB.finditer(form):
        made.append(form[place : found.start()])
        place = found.end()
        made.append(_one(found, left))
    made.append(form[place:])
    if left:
        extra = ", ".join(f"{type_name(one)}={shown(one)}" for one in left)
        made.append(f"%!(EXTRA {extra})")
    return "".join(made)


def _one(found: re.Match[str], left: list[Any]) -> str:
    flags, width, precision, verb = found.groups()
    if verb == "%":
        return "%"
    if not verb:
        return "%!(NOVERB)"
    if "*" in (width, precision):
        raise GoValueError("printf takes no width of '*'")
    wide, precise = int(width or 0), None if precision is None else int(precision)
    if "." in found.group() and precise is None:
        precise = 0
    if max(wide, precise or 0) > WIDEST:
        raise GoValueError(f"printf takes widths up to {WIDEST}")
    if not left:
        return f"%!{verb}(MISSING)"
    value = left.pop(0)
    text = _shown(value, verb, flags, precise)
    if text is None:
        said = "<nil>" if value is None else f"{type_name(value)}={shown(value)}"
        return f"%!{verb}({said})"
    return _padded(text, flags, wide, is_number=isinstance(value, int | float))


def _shown(value: Any, verb: str, flags: str, precise: int | None) -> str | None:
    """Return a value by a verb; None where that is not for such values."""
    if verb == "v" and not isinstance(value, float):
        return as_json(value) if "#" in flags and isinstance(value, str) else shown(value)
    if isinstance(value, bool):
        return shown(value) if verb == "t" else None
    if isinstance(value, int):
        return _whole(value, verb, flags)
    if isinstance(value, float):
        return _fraction(value, verb, flags, precise)
    if value is None or verb not in "sqxX":
        return None
    text = shown(value)
    if precise is not None and verb in "sq":
        text = text[:precise]
    if verb == "q":
        return json.dumps(text, ensure_ascii=False)
    if verb == "s":
        return text
    digits = text.encode("utf-8", "surrogatepass").hex()
    return digits.upper() if verb == "X" else digits


def _whole(value: int, verb: str, flags: str) -> str | None:
    if verb in _WHOLE:
        text = format(abs(value), _WHOLE[verb])
        before = {"x": "0x", "X": "0X", "o": "0", "b": "0b"}.get(verb, "") if "#" in flags else ""
        sign = "-" if value < 0 else "+" if "+" in flags else " " if " " in flags else ""
        return f"{sign}{before}{text}"
    if verb in "cqU":
        fits = 0 <= value <= 0x10FFFF and not 0xD800 <= value < 0xE000
        sign = chr(value) if fits else "\ufffd"
        return {"c": sign, "q": f"'{sign}'", "U": f"U+{value:04X}"}[verb]
    return None


def _fraction(value: float, verb: str, flags: str, precise: int | None) -> str | None:
    if verb not in f"{_FRACTIONS}v":
        return None
    if verb in "vgG" and precise is None:
        text = shown(value)
    else:
        text = format(value, f".{6 if precise is None else precise}{'g' if verb == 'v' else verb}")
    sign = "+" if "+" in flags else " " if " " in flags else ""
    return text if text[0] in "+-" else sign + text


def _padded(text: str, flags: str, wide: int, *, is_number: bool) -> str:
    if "-" in flags:
        return text.ljust(wide)
    if "0" in flags and is_number:
        sign = text[0] if text[:1] in ("-", "+", " ") else ""
        return sign + text[len(sign) :].rjust(wide - len(sign), "0")
    return text.rjust(wide)
