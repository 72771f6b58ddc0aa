"""A template in Go's language as tokens. Pure; as many as it has characters, at most.

Text between actions loses its white space where an action says so (`{{- `, ` -}}`). A token within
an action knows whether white space stands before it, which alone tells two arguments from a
field of one.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Literal, NamedTuple, cast

from bus.wire.go_templates.tree import GoTemplateError

Kind = Literal[
    "text", "open", "close", "string", "raw", "char", "variable", "field", "number", "dot", "word",
    "declare", "assign", "pipe", "comma", "left", "right", "end",
]  # fmt: skip
BLANKS = " \t\r\n"
_TOKEN = re.compile(
    r"""(?P<close>[ \t\r\n]+-\}\}|\}\})
    |(?P<space>[ \t\r\n]+)
    |(?P<declare>:=)|(?P<assign>=)|(?P<pipe>\|)|(?P<comma>,)|(?P<left>\()|(?P<right>\))
    |(?P<string>"(?:\\.|[^"\\\n])*")
    |(?P<raw>`[^`]*`)
    |(?P<char>'(?:\\.[^'\n]*|[^'\\\n]+)')
    |(?P<variable>\$\w*)
    |(?P<number>[+-]?(?:\d|\.\d)(?:[eE][+-]|[\w.])*)
    |(?P<field>\.\w+)
    |(?P<dot>\.)
    |(?P<word>[^\W\d]\w*)""",
    re.VERBOSE,
)
_UNENDED = {'"': "string", "`": "raw string", "'": "character"}


class Token(NamedTuple):
    """A piece of a template, and the line on which it begins."""

    kind: Kind
    text: str
    line: int
    spaced: bool = False


class TokenReader:
    """The tokens of a template, one after the other; `next` is the one to come."""

    def __init__(self, source: str) -> None:
        """Begin with the first. Raises GoTemplateError, as all that reads on does."""
        self._tokens = tokens_of(source)
        self.next: Token = next(self._tokens)

    def take(self) -> Token:
        """Return the token to come, and read on; the last one stays."""
        token = self.next
        if token.kind != "end":
            self.next = next(self._tokens)
        return token

    def sees(self, *kinds: Kind) -> bool:
        """Return whether the token to come is one of these."""
        return self.next.kind in kinds

    def expect(self, kind: Kind, what: str) -> None:
        """Take a token of this kind. Raises GoTemplateError, which says `what` it should be."""
        token = self.take()
        if token.kind != kind:
            raise wrong(token, what)


def wrong(token: Token, what: str) -> GoTemplateError:
    """Return the error of a token in the place of `what`."""
    found = "the template ends" if token.kind == "end" else f"found {token.text[:40]!r}"
    return GoTemplateError(token.line, f"expected {what}; {found}")


def tokens_of(source: str) -> Iterator[Token]:
    """Give all tokens, the last of kind `end`. Raises GoTemplateError for what is none."""
    place, line, trims = 0, 1, False
    while True:
        opens = source.find("{{", place)
        text = source[place:] if opens < 0 else source[place:opens]
        shown = text.lstrip(BLANKS) if trims else text
        if opens >= 0 and _trims(source, opens + 2):
            shown = shown.rstrip(BLANKS)
        if shown:
            yield Token("text", shown, line)
        line += text.count("\n")
        if opens < 0:
            yield Token("end", "", line)
            return
        place = opens + (4 if _trims(source, opens + 2) else 2)
        if source.startswith("/*", place):
            behind, trims = _comment_end(source, place, line)
        else:
            yield Token("open", "{{", line)
            behind = yield from _action(source, place, line + source[opens:place].count("\n"))
            trims = source.endswith("-}}", place, behind)
        line += source.count("\n", opens, behind)
        place = behind


def _trims(source: str, place: int) -> bool:
    """Return whether a mark of trimming stands here: a minus, and a blank behind it."""
    return source[place : place + 1] == "-" and source[place + 1 : place + 2] in tuple(BLANKS)


def _comment_end(source: str, place: int, line: int) -> tuple[int, bool]:
    """Return the place behind a comment, and whether it trims what follows."""
    ends = source.find("*/", place)
    if ends < 0:
        raise GoTemplateError(line, "a comment is not closed; expected '*/}}'")
    ends += 2
    if source.startswith("}}", ends):
        return ends + 2, False
    if source[ends : ends + 1] in tuple(BLANKS) and source.startswith("-}}", ends + 1):
        return ends + 4, True
    raise GoTemplateError(line, "a comment is an action of its own; expected '}}' behind it")


def _action(source: str, place: int, line: int) -> Generator[Token, None, int]:
    """Give the tokens of an action with its end, and return the place behind it."""
    began, spaced = line, False
    while True:
        found = _TOKEN.match(source, place)
        if found is None:
            raise _unexpected(source, place, line, began)
        kind, text = found.lastgroup, found.group()
        place = found.end()
        if kind == "space":
            spaced = True
        else:
            yield Token(cast(Kind, kind), text, line, spaced)
            spaced = False
        line += text.count("\n")
        if kind == "close":
            return place


def _unexpected(source: str, place: int, line: int, began: int) -> GoTemplateError:
    """Return what is wrong where no token begins."""
    sign = source[place : place + 1]
    if not sign:
        return GoTemplateError(began, "an action is not closed; expected '}}'")
    if sign in _UNENDED:
        return GoTemplateError(line, f"a {_UNENDED[sign]} is not closed; expected {sign}")
    return GoTemplateError(line, f"unexpected {sign!r} in an action")
