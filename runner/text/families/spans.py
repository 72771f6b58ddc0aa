"""Spans of an output and the marks around them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Marks:
    """The texts that open and close a span. An empty `end` closes with the output. `leads`: the
    span opens only at the very beginning of what is visible, and `start` is part of it."""

    start: str
    end: str
    leads: bool = False

    @property
    def kept(self) -> str:
        """Return what of `start` belongs to the text of the span."""
        return self.start if self.leads else ""

    @property
    def dropped(self) -> str:
        """Return what of `start` does not belong to the text of the span."""
        return "" if self.leads else self.start


@dataclass(frozen=True, slots=True)
class Span:
    """Part of the output. `end` is the offset in the raw text just after it; `start` where it
    began, held-back text included."""

    kind: Literal["text", "reasoning"]
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, or part of one: `name` is None in all parts but the first, `goes_on` true in all
    but the last. `arguments` is JSON text: joined, that of an object, or what the limit left."""

    name: str | None
    arguments: str
    start: int
    end: int
    goes_on: bool = False


ParseCalls = Callable[[str], object]
"""The text between the markers -> {name, arguments} or a list of them; raises when malformed."""


class Rest(str):
    """What stands between marks of calls and is part of none: a parser returns it beside them."""

    __slots__ = ()
