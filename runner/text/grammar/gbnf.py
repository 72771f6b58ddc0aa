"""Translate GBNF, llama.cpp's grammar notation, into llguidance's Lark dialect.

Pure, and linear in the length of the text. GBNF is about characters, Lark about lexemes, which
match as much as they can. So every character becomes a lexeme of its own, and exactly what GBNF
allows is allowed. Rules and classes get new names. Invalid GBNF raises `GbnfError`, which names the
line.
"""

from __future__ import annotations

import re
from string import ascii_letters, digits

NESTED_AT_MOST = 48
PARTS_AT_MOST = 600
"""The most rules and brackets of a grammar. llguidance recurses into them, so several thousand
nested ones would overflow its stack."""
LEXEMES_AT_MOST = 10_000
"""The most characters and character classes in all rules of a grammar together."""
REPEATED_AT_MOST = 100_000
_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_-]+[ \t]*::=", re.MULTILINE)
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TIMES = re.compile(r"\{[ \t]*(\d{1,7})[ \t]*(,?)[ \t]*(\d{0,7})[ \t]*\}")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", **{mark: mark for mark in "\"\\[]-^'/"}}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_HEX = set(digits + "abcdefABCDEF")
_ANY = "(?s:.)"


class GbnfError(Exception):
    """The text is not a valid GBNF grammar."""


def is_gbnf(text: str) -> bool:
    """Return whether a grammar is written in GBNF rather than in Lark."""
    return _RULE.search(text) is not None


def lark_of(text: str) -> str:
    """Return the grammar in Lark's notation. The GBNF rule `root` becomes Lark's `start`. Raises
    GbnfError."""
    return _Reader(text).read()


class _Cursor:
    """A position in a GBNF text. Its methods read the text from that position on, and advance it by
    the text that they take."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    @property
    def mark(self) -> str:
        """Return the character at this position; "" at the end of the text."""
        return self._text[self.at : self.at + 1]

    def character(self, closing: str) -> int:
        """Take one character, which may be written as an escape, and return its code point.
        `closing` is the delimiter that ends the text around it."""
        mark = self._text[self.at : self.at + 1]
        if not mark or mark in "\r\n":
            raise self.wrong(f"'{closing}'")
        self.at += 1
        return self._escaped() if mark == "\\" else self._scalar(ord(mark))

    def _escaped(self) -> int:
        mark = self._text[self.at : self.at + 1]
        self.at += 1
        if mark in _ESCAPED and mark:
            return ord(_ESCAPED[mark])
        count = _HEX_DIGITS.get(mark, 0)
        number = self._text[self.at : self.at + count]
        if not count or len(number) < count or any(digit not in _HEX for digit in number):
            raise GbnfError(f"line {self.line()}: unknown escape '\\{mark}'")
        self.at += count
        return self._scalar(int(number, 16))

    def _scalar(self, number: int) -> int:
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise GbnfError(f"line {self.line()}: {number:#x} is not a Unicode character")
        return number

    def name(self) -> str | None:
        """Take the name of a rule and return it; None if there is no name at this position."""
        match = _NAME.match(self._text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match[0]

    def skip(self, space: re.Pattern[str]) -> None:
        """Skip the white space and the comments that `space` matches."""
        match = space.match(self._text, self.at)
        assert match is not None
        self.at = match.end()

    def is_at(self, mark: str) -> bool:
        """Return whether `mark` stands at this position."""
        return self._text.startswith(mark, self.at)

    def takes(self, mark: str) -> bool:
        """Take `mark` if it stands at this position, and return whether it did."""
        if not self.is_at(mark):
            return False
        self.at += len(mark)
        return True

    def line(self) -> int:
        return self._text.count("\n", 0, self.at) + 1

    def wrong(self, wanted: str) -> GbnfError:
        """Return an error that says that `wanted` was expected at this position."""
        rest = self._text[self.at : self.at + 12]
        place = f"{rest!r}" if rest else "the end"
        return GbnfError(f"line {self.line()}: expected {wanted}, found {place}")

    def matches(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match of a pattern at this position, without advancing; None if there is
        none."""
        return pattern.match(self._text, self.at)

    @property
    def is_end(self) -> bool:
        return self.at >= len(self._text)


class _Reader:
    """Reads one grammar from its first character to its last."""

    def __init__(self, text: str) -> None:
        self._here = _Cursor(text)
        self._nested = 0
        self._parts = 0
        self._lexemes = 0
        self._rules: dict[str, str] = {}  # by their names in the text
        self._names: dict[str, str] = {"root": "start"}
        self._classes: dict[str, str] = {}  # names by regular expression

    def read(self) -> str:
        """Return the whole grammar in Lark."""
        self._here.skip(_SPACE_AND_LINES)
        while not self._here.is_end:
            self._read_rule()
            self._here.skip(_SPACE_AND_LINES)
        for name in self._names:
            if name not in self._rules:
                raise GbnfError(f"the rule '{name}' is not defined")
        lines = [f"{self._names[name]}: {body}" for name, body in self._rules.items()]
        lines += [f"{name}: /{pattern}/" for pattern, name in self._classes.items()]
        return "\n".join(lines)

    def _read_rule(self) -> None:
        name = self._here.name()
        if name is None:
            raise self._here.wrong("the name of a rule")
        if name in self._rules:
            raise GbnfError(f"the rule '{name}' is defined twice")
        self._here.skip(_SPACE)
        if not self._here.takes("::="):
            raise self._here.wrong("'::='")
        self._here.skip(_SPACE_AND_LINES)
        self._count_part()
        self._rules[name] = ""
        self._named(name)
        self._rules[name] = self._alternatives()
        if self._here.mark not in ("", "\r", "\n"):
            raise self._here.wrong(
                "a quoted text, a character class, a rule's name, '(' or the end of the line"
            )

    def _alternatives(self) -> str:
        alternatives = [self._sequence()]
        while self._takes_bar():
            self._here.skip(_SPACE_AND_LINES)
            alternatives.append(self._sequence())
        return " | ".join(alternatives)

    def _takes_bar(self) -> bool:
        """Take a '|', which may stand on a later line, and return whether there was one."""
        before = self._here.at
        self._here.skip(_SPACE_AND_LINES)
        if self._here.takes("|"):
            return True
        self._here.at = before
        return False

    def _sequence(self) -> str:
        elements: list[str] = []
        while (element := self._element()) is not None:
            elements.append(element + self._times())
            self._here.skip(_SPACE_AND_LINES if self._nested else _SPACE)
        return " ".join(elements) or '""'

    def _element(self) -> str | None:
        """Return one element of a sequence in Lark's notation, without its repetition, which
        `_times` reads; None at the end of the sequence."""
        match self._here.mark:
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ".":
                self._here.at += 1
                return self._lexeme(_ANY)
            case _:
                name = self._here.name()
                return None if name is None else self._named(name)

    def _group(self) -> str:
        if self._nested == NESTED_AT_MOST:
            raise GbnfError(f"brackets are nested too deep: the limit is {NESTED_AT_MOST}")
        self._count_part()
        self._here.at += 1
        self._nested += 1
        self._here.skip(_SPACE_AND_LINES)
        inner = self._alternatives()
        self._here.skip(_SPACE_AND_LINES)
        if not self._here.takes(")"):
            raise self._here.wrong("')'")
        self._nested -= 1
        return f"({inner})"

    def _count_part(self) -> None:
        self._parts += 1
        if self._parts > PARTS_AT_MOST:
            raise GbnfError(f"too many rules and brackets: the limit is {PARTS_AT_MOST}")

    def _literal(self) -> str:
        self._here.at += 1
        lexemes: list[str] = []
        while not self._here.takes('"'):
            lexemes.append(self._lexeme(_pattern(self._here.character('"'))))
        if len(lexemes) == 1:
            return lexemes[0]
        return f"({' '.join(lexemes)})" if lexemes else '""'

    def _class(self) -> str:
        self._here.at += 1
        negated = self._here.takes("^")
        parts: list[str] = []
        while not self._here.takes("]"):
            low = self._here.character("]")
            high = low
            if self._here.mark == "-" and not self._here.is_at("-]"):
                self._here.at += 1
                high = self._here.character("]")
            if high < low:
                raise GbnfError(
                    f"line {self._here.line()}: a character range ends before it begins"
                )
            parts.append(_pattern(low) if low == high else f"{_pattern(low)}-{_pattern(high)}")
        if parts:
            return self._lexeme(f"[{'^' if negated else ''}{''.join(parts)}]")
        if negated:
            return self._lexeme(_ANY)
        raise GbnfError(f"line {self._here.line()}: an empty character class matches nothing")

    def _times(self) -> str:
        """Take the repetition mark after an element (such as `*` or `{2,5}`), and return it in
        Lark's notation; "" if there is none."""
        self._here.skip(_SPACE_AND_LINES if self._nested else _SPACE)
        for mark in "*+?":
            if self._here.takes(mark):
                return mark
        match = self._here.matches(_TIMES)
        if match is None:
            if self._here.is_at("{"):
                raise self._here.wrong("'{m}', '{m,}' or '{m,n}'")
            return ""
        least, comma, most = match.groups()
        if max(int(least), int(most or 0)) > REPEATED_AT_MOST:
            raise GbnfError(
                f"line {self._here.line()}: an element can repeat at most {REPEATED_AT_MOST} times"
            )
        if most and (not comma or int(most) < int(least)):
            raise self._here.wrong("'{m}', '{m,}' or '{m,n}'")
        self._here.at = match.end()
        return f"{{{least},{most if comma else least}}}"

    def _lexeme(self, pattern: str) -> str:
        """Return the name of the lexeme for one character or character class."""
        self._lexemes += 1
        if self._lexemes > LEXEMES_AT_MOST:
            raise GbnfError(f"too many characters and classes: the limit is {LEXEMES_AT_MOST}")
        return self._classes.setdefault(pattern, f"C{len(self._classes)}")

    def _named(self, name: str) -> str:
        """Return the name that a GBNF rule has in the Lark grammar."""
        return self._names.setdefault(name, f"r{len(self._names)}")


def _pattern(number: int) -> str:
    """Return a regular expression that matches the character of this code point only."""
    mark = chr(number)
    return mark if mark in ascii_letters + digits else f"\\x{{{number:x}}}"
