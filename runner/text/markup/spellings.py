"""Which added tokens give a conversation its form, and where a text spells them. Pure.

Control tokens end turns, open roles and wrap results. A tag (`<think>`, `</tool_response>`) is one
that the model's makers left as text: `special` is false, and it reads as XML. Agents write tags by
hand in system and user texts, so they are tokens there, and text in what is data alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Span = tuple[int, int]
"""Where a spelling begins in a text, and where it ends."""
SPELLING_CHARACTERS = range(2, 201)
_TAG = re.compile(r"</?[a-z][a-z0-9_:.-]*>")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_END = ""


@dataclass(frozen=True, slots=True)
class AddedText:
    """An added token of a tokenizer. `stands_alone`: it is one only as a word of its own."""

    text: str
    is_special: bool
    stands_alone: bool = False


class Spellings:
    """Finds the spellings of some tokens: the leftmost first, and the longest there."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(tokens)
        self._beginnings = {text[:size] for text in self._tokens for size in range(1, len(text))}
        self._firsts = frozenset(text[0] for text in self._tokens)
        self._longest = max(map(len, self._tokens), default=0)

    def find(self, text: str) -> list[Span]:
        """Return where the tokens are spelled."""
        if not any(first in text for first in self._firsts):
            return []
        return [found.span() for found in self._pattern.finditer(text)]

    def occur_in(self, texts: Iterable[str]) -> bool:
        """Return whether a token is spelled in one of the texts, or begun at the end of one: what
        stands behind that in a prompt could complete it."""
        search, firsts, longest = self._pattern.search, tuple(self._firsts), self._longest
        for text in texts:
            for first in firsts:
                if first in text:
                    if search(text) is not None:
                        return True
                    if first in text.rstrip()[-longest:] and self._begun_at(text) is not None:
                        return True
        return False

    def broken_by(self, mark: str, text: str) -> str:
        """Return the text with a mark behind the first character of each spelling."""
        places = [start for start, _ in self.find(text)]
        begun = self._begun_at(text)
        if begun is not None and begun not in places:
            places.append(begun)
        pieces, at = list[str](), 0
        for place in sorted(places):
            pieces += (text[at : place + 1], mark)
            at = place + 1
        return "".join([*pieces, text[at:]])

    def _begun_at(self, text: str) -> int | None:
        """Return where a spelling begins that breaks off at the text's end, blanks apart."""
        end = len(text.rstrip())
        for start in range(max(0, end - self._longest), end):
            if text[start] in self._firsts and text[start:end] in self._beginnings:
                return start
        return None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        root: dict[str, Any] = {}
        for token in self._tokens:
            node = root
            for letter in token:
                node = node.setdefault(letter, {})
            node[_END] = {}
        return re.compile(_expression(root) if root else r"(?!)")


@dataclass(frozen=True)
class Markup:
    """The tokens that give conversations of one model their form. `own` are the marks of thinking
    and of calls, which the model writes itself. `written` is the text of its templates."""

    control: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    written: str = ""

    @cached_property
    def all(self) -> Spellings:
        """Return the spellings of all; none of them is a token in results, calls and tools."""
        return Spellings(self.control | self.tags)

    @cached_property
    def in_texts(self) -> Spellings:
        """Return the spellings that are no tokens in system and user texts."""
        return Spellings(self.control)

    @cached_property
    def in_answers(self) -> Spellings:
        """Return the spellings that are no tokens in the model's own turns."""
        return Spellings(self.control - self.own)


def find_markup(added: Iterable[AddedText], written: str, marks: Sequence[str]) -> Markup:
    """Return the markup of a model with these added tokens, whose templates are `written` and whose
    thinking and calls stand between `marks`. Blank tokens and bytes give no form, nor do tokens
    that are not special and that neither templates nor marks know: HTML of Gemma's, spare ones."""
    usable = [
        one
        for one in added
        if len(one.text) in SPELLING_CHARACTERS
        and not one.stands_alone
        and one.text.strip() == one.text
        and not _BYTE.fullmatch(one.text)
    ]
    known = {
        one.text
        for one in usable
        if one.is_special
        or (_is_bracketed(one.text) and (one.text in written or one.text in marks))
    }
    tags = {one.text for one in usable if not one.is_special and _TAG.fullmatch(one.text)} & known
    return Markup(
        control=frozenset(known - tags),
        tags=frozenset(tags),
        own=frozenset(marks) & known,
        written=written,
    )


def _is_bracketed(text: str) -> bool:
    """Return whether a token reads as markup: words between signs."""
    return not text[0].isalnum() and not text[-1].isalnum() and any(map(str.isalpha, text))


def _expression(node: dict[str, Any]) -> str:
    """Return an expression for the rest of all tokens in a tree of letters, the longest first."""
    choices: list[str] = []
    for letter, child in sorted(node.items()):
        if letter == _END:
            continue
        path = letter
        while len(child) == 1 and _END not in child:
            ((letter, child),) = child.items()
            path += letter
        choices.append(re.escape(path) + (_expression(child) if child.keys() != {_END} else ""))
    body = choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"
    return f"(?:{body})?" if _END in node else body
