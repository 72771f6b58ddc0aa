"""Repairs models' JSON, so that all reported calls have valid JSON. Pure.

It repairs raw control characters, escapes that JSON does not have, halves of surrogate pairs (to
U+FFFD), commas before an end, Python's words, and brackets with the wrong counterpart. Bare words
become strings. So do values that clients could not send back: values nested deeper than `DEEPEST`
levels, and numbers beyond a double. Other JSON stays the same, character by character.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, cast

_PYTHON = {"True": "true", "False": "false", "None": "null"}
_VALUE = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BEGINS = re.compile(r"""\{(?=\s*["}])|\[(?=\s*\{\s*["}])""")
_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')
_HEX = frozenset("0123456789abcdefABCDEF")
_NO_CHARACTER = "\ufffd"
_SPACE = " \t\r\n"
_STRUCTURE = frozenset('{}[]:,"' + _SPACE)
_WIDEST = 1024
"""The number of bits of the largest whole number that a double can hold."""
DEEPEST = 48
"""Maximum nesting of arguments. Together with the levels around them in a request's history, the
body has at most 64 levels."""


class ObjectText:
    """Repairs the growing text of one JSON object up to its end.

    `behind` is the text after its end. `is_torn`: a comma, a colon or a value was missing, so the
    repaired text may not be what the model meant.
    """

    __slots__ = (
        "_buried",
        "_deepest",
        "_escape",
        "_inside",
        "_open",
        "_waiting",
        "_wants",
        "_word",
        "behind",
        "is_over",
        "is_torn",
    )

    def __init__(self, deepest: float = DEEPEST) -> None:
        """A value with `deepest` levels around it becomes a string."""
        self._deepest = deepest
        self._open: list[str] = []
        self._wants: list[Literal["name", "colon", "value", "comma"]] = []  # for each open one
        self._inside = False  # a string
        self._escape = ""  # one that is not whole, or half a pair of surrogates
        self._word = ""  # outside of strings: a number, a word
        self._waiting = ""  # a comma, and the white space behind it
        self._buried: ObjectText | None = None  # the value that is nested too deep
        self.is_over = False
        self.behind = ""
        self.is_torn = False

    @property
    def inside_string(self) -> bool:
        """Return whether the text so far ends inside a string."""
        return self._inside if self._buried is None else self._buried.inside_string

    def take(self, text: str) -> str:
        """Add `text` to the object's text; return the repaired text that later text cannot
        change."""
        out: list[str] = []
        place = 0
        while place < len(text):
            if self.is_over:
                self.behind += text[place:]
                break
            if self._buried is not None:
                text, place = self._take_buried(text[place:], out), 0
                continue
            plain = _PLAIN.match(text, place) if self._inside and not self._escape else None
            if plain is not None:
                out.append(plain[0])
                place = plain.end()
                continue
            letter, place = text[place], place + 1
            if self._inside:
                self._take_inside(letter, out)
            else:
                self._take_outside(letter, out)
        return "".join(out)

    def missing(self) -> str:
        """Return the text that is pending, followed by the text that closes an object that is still
        open."""
        if self.is_over:
            return ""
        out: list[str] = []
        if self._buried is not None:
            out += (_quoted(self._buried.missing()), '"')
            self._buried = None
        while self._escape:
            self._end_escape("", out)
        if self._inside:
            out.append('"')
        self._end_word(out)
        while self._open:
            self._close(out)
        return "".join(out)

    def cut(self) -> str:
        """Return the text that is pending if the token limit cut the object off; no brackets are
        added."""
        if self.is_over or self._inside or self._buried is not None:
            return ""
        return self._waiting + (self._word if _VALUE.match(self._word) else "")

    def _take_buried(self, text: str, out: list[str]) -> str:
        """Process text of a value that is nested too deep; return the text after that value."""
        buried = self._buried
        assert buried is not None
        out.append(_quoted(buried.take(text)))
        if not buried.is_over:
            return ""
        out.append('"')
        self._buried = None
        self.is_torn |= buried.is_torn
        return buried.behind

    def _take_inside(self, letter: str, out: list[str]) -> None:
        if self._escape:
            self._take_escape(letter, out)
        elif letter == '"':
            self._inside = False
            out.append(letter)
        elif letter == "\\":
            self._escape = letter
        else:
            out.append(_in_string(letter))

    def _take_escape(self, letter: str, out: list[str]) -> None:
        held = self._escape + letter
        size = len(held)
        if size == 2 and letter in "\"\\/bfnrt'":
            self._escape = ""
            out.append(letter if letter == "'" else held)
        elif (size in (2, 8) and letter == "u") or (size == 7 and letter == "\\"):
            self._escape = held
        elif size not in (2, 7, 8) and letter in _HEX:
            self._escape = held
            if size in (6, 12):
                self._take_unit(out)
        else:
            self._end_escape(letter, out)

    def _take_unit(self, out: list[str]) -> None:
        r"""Process a complete `\uXXXX` escape, alone or after the first half of a surrogate
        pair."""
        held = self._escape
        unit = int(held[-4:], 16)
        is_low, is_high = 0xDC00 <= unit < 0xE000, 0xD800 <= unit < 0xDC00
        if len(held) == 12 and not is_low:
            out.append("\\ufffd")
            held = held[6:]
        self._escape = held if is_high else ""
        if is_high:
            return
        out.append("\\ufffd" if is_low and len(held) == 6 else held)

    def _end_escape(self, letters: str, out: list[str]) -> None:
        """End an invalid escape before these letters: half a surrogate pair, or a backslash, which
        becomes text together with the letters."""
        held, self._escape = self._escape, ""
        is_half = len(held) >= 6
        out.append("\\ufffd" if is_half else "\\\\" + held[1:])
        for letter in (held[6:] if is_half else "") + letters:
            self._take_inside(letter, out)

    def _take_outside(self, letter: str, out: list[str]) -> None:
        if letter not in _STRUCTURE:
            self._word += letter
            return
        self._end_word(out)
        if letter in "}]":
            while letter in self._open and self._close(out) != letter:
                pass
            self.is_over = not self._open
        elif letter == ",":
            self._end_member(out)
            self._waiting = self._waiting or ("," if self._wants[-1:] == ["comma"] else "")
        elif letter == ":":
            if self._wants[-1:] == ["colon"]:
                self._wants[-1] = "value"
                out.append(letter)
        elif letter in _SPACE:
            if self._waiting:
                self._waiting += letter
            else:
                out.append(letter)
        elif letter != '"' and len(self._open) == self._deepest:
            self._begin_value(out, is_text=False)
            self._buried = ObjectText(math.inf)
            out += ('"', _quoted(self._buried.take(letter)))
        else:
            self._begin_value(out, is_text=letter == '"')
            self._inside = letter == '"'
            if letter in "{[":
                self._open.append("}" if letter == "{" else "]")
                self._wants.append("name" if letter == "{" else "value")
            out.append(letter)

    def _end_word(self, out: list[str]) -> None:
        word, self._word = self._word, ""
        if not word:
            return
        is_name = self._begin_value(out, is_text=True)
        if is_name or not (_VALUE.fullmatch(word) and _fits(word)):
            text = json.dumps(_whole_text(word.strip("'")), ensure_ascii=False)
            word = text if is_name else _PYTHON.get(word, text)
        out.append(word)

    def _begin_value(self, out: list[str], *, is_text: bool) -> bool:
        """Write missing punctuation before the next value. Return whether the value is the name of
        a member, which must be a string (`is_text`)."""
        if not self._wants:
            return False
        wants = self._wants[-1]
        self.is_torn |= wants == "colon" or (wants == "comma" and not self._waiting)
        if wants == "comma":
            out.append(self._waiting or ",")
            self._waiting = ""
            wants = "name" if self._open[-1] == "}" else "value"
        elif wants == "colon":
            out.append(":")
        if wants == "name" and is_text:
            self._wants[-1] = "colon"
            return True
        if wants == "name":
            self.is_torn = True
            out.append('"":')
        self._wants[-1] = "comma"
        return False

    def _end_member(self, out: list[str]) -> None:
        """Write null as the value of a member that has none."""
        if self._open[-1:] == ["}"] and self._wants[-1] in ("colon", "value"):
            self.is_torn = True
            out.append(":null" if self._wants[-1] == "colon" else "null")
            self._wants[-1] = "comma"

    def _close(self, out: list[str]) -> str:
        """Close the innermost object or list; return its closing bracket."""
        self._end_member(out)
        self._waiting = ""
        self._wants.pop()
        out.append(self._open.pop())
        return out[-1]


def mended_json(text: str, *, is_cut: bool = False) -> str:
    """Return a text in which JSON objects, and lists of objects, are repaired.

    Open objects are closed, unless the token limit cut them off (`is_cut`). A text with a torn
    object is returned unchanged.
    """
    out: list[str] = []
    left = text
    while (begun := _BEGINS.search(left)) is not None:
        object_text = ObjectText()
        out += (left[: begun.start()], object_text.take(left[begun.start() :]))
        out.append(object_text.cut() if is_cut else object_text.missing())
        if object_text.is_torn:
            return text
        left = object_text.behind
    return "".join((*out, left))


def object_of(text: str) -> dict[str, Any] | None:
    """Return the object of a JSON text, repaired if necessary; None if the text is no object. An
    empty text is an empty object."""
    if not text.strip():
        return {}
    for candidate in (text, mended_json(text)):
        try:
            value: Any = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return cast(dict[str, Any], sendable(value)) if isinstance(value, dict) else None
    return None


def sendable(value: Any, level: int = 0) -> Any:
    """Return a value that JSON, UTF-8 and clients can represent.

    Halves of surrogate pairs become U+FFFD. NaN and infinities become their names, whole numbers
    beyond a double their digits. A value with `DEEPEST` levels around it becomes JSON text; `level`
    is the number of levels around `value`.
    """
    if isinstance(value, str):
        return _whole_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        mapping = cast(Mapping[Any, Any], value)
        members = {
            _whole_text(str(name)): sendable(item, level + 1) for name, item in mapping.items()
        }
        return json.dumps(members, ensure_ascii=False) if level == DEEPEST else members
    if isinstance(value, list | tuple | set | frozenset):
        items = [sendable(item, level + 1) for item in cast(list[Any], value)]
        return json.dumps(items, ensure_ascii=False) if level == DEEPEST else items
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < _WIDEST else str(value)
    return "..." if value is ... else str(value)


def _fits(word: str) -> bool:
    """Return whether a JSON word (a number, true, false or null) is safe to pass on. Only a number
    that exceeds a double is not."""
    return not word[-1].isdigit() or math.isfinite(float(word))


def _quoted(text: str) -> str:
    """Return the text as JSON writes it inside a string, without the quotation marks around it."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _whole_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _in_string(letter: str) -> str:
    if letter < " ":
        return json.dumps(letter)[1:-1]
    return _NO_CHARACTER if "\ud800" <= letter <= "\udfff" else letter
