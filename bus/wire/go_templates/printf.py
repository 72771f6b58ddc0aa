"""Go's `fmt.Sprintf`, for the values of templates. Pure.

All verbs but p, with flags, width, precision and places of arguments; lists, maps and structs are
told part by part; what does not fit is told in the text, as Go does it. A width of a star is
refused. The rules are those of the manual of Go's `fmt`, and were compared with runs of Go 1.19.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from bus.wire.go_templates.values import (
    GoStruct,
    GoValueError,
    as_json,
    quoted,
    quoted_sign,
    shown,
    speaks,
    type_name,
)

WIDEST = 10_000
_VERB = re.compile(
    r"%(?P<flags>[-+# 0]*)(?P<first>\[[^\]%]*\])?(?P<width>\d+|\*)?"
    r"(?P<point>\.(?P<second>\[[^\]%]*\])?(?P<precision>\d+|\*)?)?(?P<third>\[[^\]%]*\])?"
    r"(?P<verb>.|$)",
    re.DOTALL,
)
_DIGITS = {"d": "d", "v": "d", "o": "o", "O": "o", "b": "b", "x": "x", "X": "X"}
_FRACTIONS = "eEfFgG"


@dataclass(frozen=True, slots=True)
class _Form:
    """How one value is to be told."""

    verb: str
    flags: str
    wide: int
    precise: int | None
    in_go: bool = False
    """`%#v`: values are told as Go writes them in programs."""
    names_fields: bool = False
    """`%+v`."""

    def padded(self, text: str) -> str:
        """Return a text, filled to the width."""
        if "-" in self.flags:
            return text.ljust(self.wide)
        return text.rjust(self.wide, "0" if "0" in self.flags else " ")

    def padded_number(self, sign: str, digits: str) -> str:
        """Return a number, filled to the width: zeros stand behind its sign."""
        if "0" in self.flags and "-" not in self.flags:
            return sign + digits.rjust(self.wide - len(sign), "0")
        return (
            (sign + digits).ljust(self.wide)
            if "-" in self.flags
            else (sign + digits).rjust(self.wide)
        )

    def sign(self, *, is_negative: bool) -> str:
        """Return the sign before a number."""
        return (
            "-" if is_negative else "+" if "+" in self.flags else " " if " " in self.flags else ""
        )

    def misfit(self, value: Any) -> str:
        """Return what is told of a value that this verb is not for."""
        if value is None:
            return f"%!{self.verb}(<nil>)"
        return f"%!{self.verb}({type_name(value)}={_part(value, replace(self, verb='v'))})"


def printf(form: str, values: Sequence[Any]) -> str:
    """Return the text of a form. Raises GoValueError for a width that is not taken."""
    made: list[str] = []
    place = turn = 0
    was_chosen = False
    for found in _VERB.finditer(form):
        made.append(form[place : found.start()])
        place = found.end()
        chosen = [said for said in found.group("first", "second", "third") if said]
        was_chosen = was_chosen or bool(chosen)
        fits = True
        for said in chosen:
            number = said[1:-1]
            fits = (
                fits and number.isdecimal() and len(number) < 6 and 1 <= int(number) <= len(values)
            )
            turn = int(number) - 1 if fits else turn
        one = _form(found)
        if one.verb == "%":
            made.append("%")
        elif not one.verb:
            made.append("%!(NOVERB)")
        elif not fits:
            made.append(f"%!{one.verb}(BADINDEX)")
        elif turn >= len(values):
            made.append(f"%!{one.verb}({'BADINDEX' if chosen else 'MISSING'})")
        else:
            made.append(_told(values[turn], one))
            turn += 1
    made.append(form[place:])
    if turn < len(values) and not was_chosen:
        extra = (
            "<nil>" if one is None else f"{type_name(one)}={shown(one)}" for one in values[turn:]
        )
        made.append(f"%!(EXTRA {', '.join(extra)})")
    return "".join(made)


def _form(found: re.Match[str]) -> _Form:
    width, precision = found["width"], found["precision"]
    if "*" in (width, precision):
        raise GoValueError("printf takes no width of '*'")
    wide = int(width or 0)
    precise = int(precision or 0) if found["point"] else None
    if max(wide, precise or 0) > WIDEST:
        raise GoValueError(f"printf takes widths up to {WIDEST}")
    verb, flags = found["verb"], found["flags"]
    if verb != "v":
        return _Form(verb, flags, wide, precise)
    plain = flags.replace("#", "").replace("+", "")
    return _Form(verb, plain, wide, precise, in_go="#" in flags, names_fields="+" in flags)


def _told(value: Any, form: _Form) -> str:
    """Return a value that stands alone by its form."""
    if form.verb == "T":
        return _Form("s", form.flags, form.wide, form.precise).padded(type_name(value))
    if value is None:
        return form.padded("<nil>") if form.verb == "v" else form.misfit(None)
    return _part(value, form)


def _part(value: Any, form: _Form) -> str:
    """Return a value, which may be a part of another, by a form."""
    if value is None:
        return "interface {}(nil)" if form.in_go else "<nil>"
    if isinstance(value, bool):
        return form.padded(shown(value)) if form.verb in "tv" else form.misfit(value)
    if isinstance(value, int):
        return _whole(value, form)
    if isinstance(value, float):
        return _fraction(value, form)
    if isinstance(value, str):
        return _text(value, form)
    if speaks(value) and form.verb in "vsxXq" and not form.in_go:
        return _text(as_json(value), form)
    return _parts(value, form)


def _parts(value: Any, form: _Form) -> str:
    """Return a list, a map or a struct part by part."""
    if isinstance(value, GoStruct):
        fields = value.fields.items()
        if form.in_go:
            named = ", ".join(f"{name}:{_part(one, form)}" for name, one in fields)
            return f"{type_name(value)}{{{named}}}"
        names = (f"{name}:" if form.names_fields else "" for name, _ in fields)
        told = (_part(one, form) for _, one in fields)
        return "{" + " ".join(map("".join, zip(names, told, strict=True))) + "}"
    if isinstance(value, dict):
        known = cast(dict[str, Any], value)
        pairs = [f"{_part(key, form)}:{_part(known[key], form)}" for key in sorted(known)]
        if form.in_go:
            return f"{type_name(known)}{{{', '.join(pairs)}}}"
        return f"map[{' '.join(pairs)}]"
    items = [_part(one, form) for one in cast(list[Any], value)]
    if form.in_go:
        return f"{type_name(value)}{{{', '.join(items)}}}"
    return f"[{' '.join(items)}]"


def _text(text: str, form: _Form) -> str:
    if form.verb in "xX":
        return form.padded(_hexadecimal(text, form))
    if form.verb not in "vsq":
        return form.misfit(text)
    if form.precise is not None:
        text = text[: form.precise]
    if form.verb == "q" or form.in_go:
        in_ascii = "+" in form.flags and form.verb == "q"
        plain = "#" in form.flags and form.verb == "q" and _can_stand_raw(text)
        text = f"`{text}`" if plain else quoted(text, in_ascii=in_ascii)
    return form.padded(text)


def _can_stand_raw(text: str) -> bool:
    return not any(sign in "`\x7f\ufeff\ufffd" or (sign < " " and sign != "\t") for sign in text)


def _hexadecimal(text: str, form: _Form) -> str:
    data = text.encode("utf-8", "surrogatepass")[: form.precise]
    between = " " if " " in form.flags else ""
    before = f"0{form.verb}" if "#" in form.flags else ""
    pairs = (f"{byte:02{form.verb}}" for byte in data)
    if not between:
        return before + "".join(pairs) if data else ""
    return between.join(before + pair for pair in pairs)


def _whole(value: int, form: _Form) -> str:
    verb = form.verb
    if verb in _DIGITS:
        digits = format(abs(value), _DIGITS[verb])
        if form.precise is not None:
            digits = "" if value == 0 and not form.precise else digits.rjust(form.precise, "0")
        before = {"x": "0x", "X": "0X", "b": "0b"}.get(verb, "") if "#" in form.flags else ""
        if verb == "o" and "#" in form.flags and not digits.startswith("0"):
            before = "0"
        before = "0o" if verb == "O" else before
        sign = form.sign(is_negative=value < 0)
        if form.precise is not None:
            if not digits:
                return " " * form.wide
            text = sign + before + digits
            return text.ljust(form.wide) if "-" in form.flags else text.rjust(form.wide)
        if "0" in form.flags and "-" not in form.flags and form.wide:
            digits = digits.rjust(form.wide - len(sign), "0")
        return form.padded_number(sign, before + digits)
    if verb not in "cqU":
        return form.misfit(value)
    fits = 0 <= value <= 0x10FFFF and not 0xD800 <= value < 0xE000
    sign = chr(value) if fits else "\ufffd"
    if verb == "U":
        shows = "#" in form.flags and fits and sign.isprintable()
        text = f"U+{value & 0xFFFFFFFFFFFFFFFF:0{max(4, form.precise or 0)}X}"
        text += f" '{sign}'" if shows else ""
        return text.ljust(form.wide) if "-" in form.flags else text.rjust(form.wide)
    return form.padded(sign if verb == "c" else quoted_sign(sign, in_ascii="+" in form.flags))


def _fraction(value: float, form: _Form) -> str:
    verb = form.verb
    if verb == "b" or (verb in "xX" and form.precise is not None):
        raise GoValueError(f"printf takes no %{verb} of a float64 like this")
    if verb not in f"{_FRACTIONS}vxX":
        return form.misfit(value)
    size = abs(value)
    is_negative = math.copysign(1, value) < 0
    if not math.isfinite(value):
        text = "NaN" if math.isnan(value) else "Inf"
        shows = form.sign(is_negative=is_negative) or ("+" if verb == "v" and text == "Inf" else "")
        text = shows + text
        return text.ljust(form.wide) if "-" in form.flags else text.rjust(form.wide)
    if verb in "xX":
        mantissa, exponent = size.hex().split("p")
        mantissa = mantissa.rstrip("0").removesuffix(".") if "." in mantissa else mantissa
        text = f"{mantissa}p{int(exponent):+03d}"
        text = text.upper() if verb == "X" else text
    elif verb in "vgG" and form.precise is None:
        text = shown(size)
        text = text.upper() if verb == "G" else text
    else:
        precise = 6 if form.precise is None else form.precise
        text = format(size, f".{precise}{'g' if verb == 'v' else verb}")
    return form.padded_number(form.sign(is_negative=is_negative), text)
