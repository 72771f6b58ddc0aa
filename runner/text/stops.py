"""Find strings in text that arrives in pieces, holding back as little as possible.

Pure. A match is the string that is *complete* first. If several end at the same character, it is
the longest. So matches do not depend on how the text was split. Text is held exactly while it is
the beginning of a sought string. The method is Aho-Corasick: one pass, constant work per character
for any number and length of strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache


class Automaton:
    """The strings to search for, compiled into a state machine that all scans for them share. Empty
    strings are not allowed."""

    __slots__ = ("depth", "first", "matched", "source", "step")

    def __init__(self, strings: Iterable[str]) -> None:
        self.step: list[dict[str, int]] = [{}]
        self.depth: list[int] = [0]
        """For each state, the number of characters at the end of the text that are held back in
        it."""
        self.source: list[str] = [""]
        """For each state, a string that begins with the characters held back in it."""
        self.matched: list[str | None] = [None]
        sought = tuple(dict.fromkeys(strings))
        for string in sought:
            self._insert(string)
        self._link()
        letters = "".join(sorted({re.escape(string[0]) for string in sought}))
        self.first = re.compile(f"[{letters}]") if letters else None
        """A pattern that finds the first character at which one of the strings could begin; None if
        there are no strings."""

    def _insert(self, string: str) -> None:
        state = 0
        for place, letter in enumerate(string, 1):
            following = self.step[state].get(letter)
            if following is None:
                following = len(self.step)
                self.step[state][letter] = following
                self.step.append({})
                self.depth.append(place)
                self.source.append(string)
                self.matched.append(None)
            state = following
        self.matched[state] = string

    def _link(self) -> None:
        """Complete the transitions breadth first: every state gets those of its longest suffix that
        is itself a state, so that scanning needs no failure links."""
        queue = list(self.step[0].values())
        suffix = dict.fromkeys(queue, 0)
        for state in queue:
            back = suffix[state]
            if self.matched[state] is None:
                self.matched[state] = self.matched[back]
            own = dict(self.step[state])
            for letter, following in own.items():
                suffix[following] = self.step[back].get(letter, 0)
                queue.append(following)
            self.step[state] = self.step[back] | own


@lru_cache(maxsize=256)
def automaton(strings: tuple[str, ...]) -> Automaton:
    """Return the automaton of these strings; cached for requests that share them."""
    return Automaton(strings)


class Scan:
    """The search for strings in one text. After a match the search begins anew."""

    __slots__ = ("_automaton", "_state")

    def __init__(self, strings: Automaton) -> None:
        self._automaton = strings
        self._state = 0

    @property
    def held_text(self) -> str:
        strings, state = self._automaton, self._state
        return strings.source[state][: strings.depth[state]]

    def feed(self, text: str) -> tuple[str, str | None, str]:
        """Return (text that is certain now, the matched string, the text after it).

        Certain text includes previously held text. Without a match the third is empty; with one,
        the second and third were not searched further.
        """
        strings = self._automaton
        if self._state == 0:
            begins = strings.first.search(text) if strings.first is not None else None
            if begins is None:
                return text, None, ""
            return self._walk(text, begins.start())
        held = self.held_text
        return self._walk(held + text, len(held))

    def flush(self) -> str:
        """Return the text that is still held back, when no more text comes."""
        held = self.held_text
        self._state = 0
        return held

    def _walk(self, text: str, start: int) -> tuple[str, str | None, str]:
        strings = self._automaton
        step, matched = strings.step, strings.matched
        state = self._state
        for place in range(start, len(text)):
            state = step[state].get(text[place], 0)
            match = matched[state]
            if match is not None:
                self._state = 0
                return text[: place + 1 - len(match)], match, text[place + 1 :]
        self._state = state
        held = strings.depth[state]
        return (text[:-held] if held else text), None, ""
