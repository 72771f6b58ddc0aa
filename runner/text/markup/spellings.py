"""Find the added tokens that structure a conversation, and where a text spells them. Pure.

Control tokens end turns, open roles and wrap results. A tag (`<think>`, `</tool_response>`) is an
added token that the model's makers left as text: `special` is false, and it looks like XML. Agents
write tags by hand in system and user texts, so tags are tokens in these texts. In pure data, such
as tool results, tags are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Span = tuple[int, int]
"""The beginning and the end of a spelled-out token in a text."""
SPELLING_CHARACTERS = range(2, 201)
_TAG = re.compile(r"</?[a-z][a-z0-9_:.-]*>")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_END = ""


@dataclass(frozen=True, slots=True)
class AddedText:
    """An added token of a tokenizer. `stands_alone`: it matches only as a whole word."""

    text: str
    is_special: bool
    stands_alone: bool = False


class Spellings:
    """Finds the texts of some added tokens in another text: the leftmost match first, then the
    longest."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(tokens)
        self._beginnings = {text[:size] for text in self._tokens for size in range(1, len(text))}
        self._firsts = frozenset(text[0] for text in self._tokens)
        self._longest = max(map(len, self._tokens), default=0)

    def find(self, text: str) -> list[Span]:
        """Return the (start, end) spans of a text that match the text of a markup token."""
        if not any(first in text for first in self._firsts):
            return []
        return [match.span() for match in self._pattern.finditer(text)]

    def occur_in(self, texts: Iterable[str]) -> bool:
        """Return whether a text contains the text of a token. It also counts if the text ends with
        the beginning of a token, because the next text of the prompt could complete it."""
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
        """Return the text with `mark` inserted after the first character of each token's text in
        it."""
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
        """Return the position at which the beginning of a token's text starts at the end of a text,
        spaces ignored; None if there is none."""
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
    """The tokens that structure a model's conversations. `control` are the tokens that end turns,
    open roles and wrap results; `tags` look like XML and are not special tokens. `own` are those of
    `control` or `tags` that the model itself writes around thinking and calls. `written` is the
    text of the model's templates."""

    control: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    written: str = ""

    @cached_property
    def all(self) -> Spellings:
        """Return the finder of all markup. In tool results, calls and tool definitions no markup is
        read as a token."""
        return Spellings(self.control | self.tags)

    @cached_property
    def in_texts(self) -> Spellings:
        """Return the finder of the markup that stays text in system and user messages."""
        return Spellings(self.control)

    @cached_property
    def in_answers(self) -> Spellings:
        """Return the finder of the markup that stays text in the model's own messages."""
        return Spellings(self.control - self.own)


def find_markup(added: Iterable[AddedText], written: str, marks: Sequence[str]) -> Markup:
    """Return the markup of a model with these added tokens. Its templates are `written`; its
    thinking and calls are between `marks`. Excludes blank and byte tokens, and tokens that are not
    special and occur in neither templates nor marks, such as Gemma's HTML and spare ones."""
    usable = [
        token
        for token in added
        if len(token.text) in SPELLING_CHARACTERS
        and not token.stands_alone
        and token.text.strip() == token.text
        and not _BYTE.fullmatch(token.text)
    ]
    texts = {
        token.text
        for token in usable
        if token.is_special
        or (_is_bracketed(token.text) and (token.text in written or token.text in marks))
    }
    tags = {
        token.text for token in usable if not token.is_special and _TAG.fullmatch(token.text)
    } & texts
    return Markup(
        control=frozenset(texts - tags),
        tags=frozenset(tags),
        own=frozenset(marks) & texts,
        written=written,
    )


def _is_bracketed(text: str) -> bool:
    """Return whether a token looks like markup: it has letters, but begins and ends with neither a
    letter nor a digit."""
    return not text[0].isalnum() and not text[-1].isalnum() and any(map(str.isalpha, text))


def _expression(node: dict[str, Any]) -> str:
    """Return a regular expression for the remaining letters of all tokens below this node of a
    trie, the longest first."""
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
