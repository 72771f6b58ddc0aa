"""What is known of a family of models: its marks, its parser of calls, and its reader of output.

Pure. Most families mark thinking and calls by a text before and one behind
(`runner.text.families.marked`); a family whose output is made of messages with channels has a
reader of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runner.text.families.call_forms import CallForm
from runner.text.families.marked import SpanReader
from runner.text.families.spans import Call, Marks, ParseCalls, Span
from runner.text.prepared import SpanState
from runner.text.stops import Automaton

ParseWithTools = Callable[[str, Sequence[Mapping[str, Any]]], object]
"""The text between the marks and the tools -> {name, arguments}, or a list of them. Raises any
error where the text is no call."""


class Reader(Protocol):
    """Reads one choice's text: the same spans however the text was cut into pieces.

    `stop` is the stop string that ended the visible text, after which nothing more is read.
    """

    stop: str | None

    @property
    def reasoning(self) -> bool:
        """Return whether the text so far ends inside thinking."""
        ...

    @property
    def may_think(self) -> bool:
        """Return whether the next token may begin thinking, where the text is not within it."""
        ...

    def look_for(self, stops: Automaton) -> None:
        """Look for these stop strings in the visible text from here on."""
        ...

    def feed(self, text: str) -> list[Span | Call]:
        """Take more text and return the spans that are certain now."""
        ...

    def flush(self, *, is_cut: bool = False) -> list[Span | Call]:
        """End the output and return what was held back; `is_cut`: the limit cut it off."""
        ...


@dataclass(frozen=True, slots=True)
class LibraryMarks:
    """What mlx-lm finds out about a tokenizer. `format` is its name for the form of calls."""

    think: Marks | None = None
    calls: Marks | None = None
    format: str | None = None
    parse: ParseWithTools | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """How models of one family write. `think` and `calls` None: they have none.

    `format` names the form of calls, `form` is what a grammar of them is made of, None where there
    is none. `inner` are further markers that calls are made of, whose text must be seen.
    `behind_thinking` is the layout between thinking's end and the answer, as the template has it.
    """

    think: Marks | None
    calls: Marks | None
    format: str | None
    parse: ParseWithTools | None
    inner: tuple[str, ...] = ()
    behind_thinking: str = ""
    form: CallForm | None = None

    @property
    def thinks_unasked(self) -> bool:
        """Return whether the model thinks unless it is told not to."""
        return False

    @property
    def markers(self) -> frozenset[str]:
        """Return the texts of all markers, which are read and never shown."""
        marks = [text for one in (self.think, self.calls) if one for text in (one.start, one.end)]
        return frozenset([*marks, *self.inner])

    def prefill(self, *, thinking: bool, is_held: bool, has_tools: bool) -> str:
        """Return what the prompt ends with behind the template's text, so that the model thinks or
        does not; `is_held`: its answer must follow a grammar."""
        return ""

    def opening(self, prompt: str, final: str | None) -> SpanState:
        """Return where output behind this prompt begins; `final` is the content of the turn that is
        continued, None for a new turn."""
        if self.think is None:
            return "text"
        start, end = self.think.start, self.think.end
        if final is not None:
            return "reasoning" if final.rfind(start) > final.rfind(end) else "text"
        return "reasoning" if prompt.rstrip().endswith(start) else "text"

    def closing(self, *, has_tools: bool) -> str:
        """Return what the model would write to end its thinking and begin its answer, or a call
        where it `has_tools`; "" where thinking cannot be ended."""
        end = self.think.end if self.think is not None else ""
        return end and end + self.behind_thinking

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages as this family's templates know them: reasoning goes by two names."""
        return [_aliased(message) for message in messages]

    def reader(
        self,
        tools: Sequence[Mapping[str, Any]],
        *,
        reads_thinking: bool,
        reads_tools: bool,
        opening: SpanState,
        stops: Automaton,
    ) -> Reader:
        """Return the reader of one choice; what is not read is plain text."""
        return SpanReader(
            think=self.think if reads_thinking else None,
            calls=self.calls if reads_tools else None,
            parse=self.parser(tools),
            opening=opening,
            stops=stops,
        )

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> ParseCalls:
        """Return what reads the text between the marks of calls."""
        parse = self.parse
        if parse is None:
            return _no_calls
        return lambda raw: parse(raw, tools)


def _no_calls(raw: str) -> object:
    raise ValueError("this family makes no calls")


def _aliased(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message with its reasoning under the other name that templates have for it."""
    reasoning = message.get("reasoning_content")
    return {**({} if reasoning is None else {"thinking": reasoning}), **message}
