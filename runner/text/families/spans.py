"""The spans of an output (text, thinking, tool calls) and the marks around them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Marks:
    """The texts that open and close a span. With an empty `end` the span ends with the output.
    `leads`: the span opens only at the beginning of the visible text, and `start` is part of it."""

    start: str
    end: str
    leads: bool = False

    @property
    def visible(self) -> str:
        """Return the part of `start` that belongs to the span's text."""
        return self.start if self.leads else ""

    @property
    def dropped(self) -> str:
        """Return the part of `start` that does not belong to the span's text."""
        return "" if self.leads else self.start


@dataclass(frozen=True, slots=True)
class Span:
    """Part of the output. `start` and `end` are its offsets in the raw text; `start` includes text
    that was held back."""

    kind: Literal["text", "reasoning"]
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, or a part of it. `name` is None in all parts but the first; `goes_on` is true in
    all but the last. The joined `arguments` are the JSON text of an object, complete unless the
    token limit cut it off."""

    name: str | None
    arguments: str
    start: int
    end: int
    goes_on: bool = False


ParseCalls = Callable[[str], object]
"""Parses the text between the marks of calls into {name, arguments}, or a list of them. Raises an
error if the text is malformed."""


class Rest(str):
    """Text between the marks of calls that belongs to no call. A parser returns it along with the
    calls."""

    __slots__ = ()
