"""A family of models: its marks, its parser of calls, and its reader of output.

Pure. Most families put marks before and after thinking and calls (`runner.text.families.marked`). A
family whose output consists of messages with channels has its own reader.
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
"""Parses the text between the marks, with the tools, into {name, arguments} or a list of them. May
raise any error if the text is no call."""


class Reader(Protocol):
    """Reads the text of one choice. The spans do not depend on how the text was cut into pieces.

    `stop` is the stop string that ended the visible text; nothing is read after it.
    """

    stop: str | None

    @property
    def reasoning(self) -> bool:
        """Return whether the text so far ends inside thinking."""
        ...

    @property
    def may_think(self) -> bool:
        """Return whether the next token may begin thinking. Only meaningful while the text is not
        inside thinking."""
        ...

    def look_for(self, stops: Automaton) -> None:
        """Search the visible text for these stop strings from now on; earlier text is not
        searched."""
        ...

    def feed(self, text: str) -> list[Span | Call]:
        """Add `text` to the output; return the spans of it that later text cannot change."""
        ...

    def flush(self, *, is_cut: bool = False) -> list[Span | Call]:
        """End the output; return the remaining spans. `is_cut`: the token limit cut the output
        off."""
        ...


@dataclass(frozen=True, slots=True)
class LibraryMarks:
    """The facts that mlx-lm detected about a tokenizer. `format` is the name of the tool call
    format in mlx-lm."""

    think: Marks | None = None
    calls: Marks | None = None
    format: str | None = None
    parse: ParseWithTools | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """The output format of one family. `think` or `calls` None: it has no thinking or no calls.

    `format` names the form of calls. `form` has the fixed texts from which a grammar of calls is
    made; None if there is no such grammar. `inner` are further markers within calls; their text
    must stay visible to the parser. `behind_thinking` is the template's layout between the end of
    thinking and the answer.
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
        """Return whether the model thinks if a request does not say so."""
        return False

    @property
    def markers(self) -> frozenset[str]:
        """Return the texts of all markers: they are parsed, and never shown to clients."""
        marks = [
            text for kind in (self.think, self.calls) if kind for text in (kind.start, kind.end)
        ]
        return frozenset([*marks, *self.inner])

    def prefill(self, *, thinking: bool, is_held: bool, has_tools: bool) -> str:
        """Return text to append to the prompt so that the model thinks, or does not think.
        `is_held`: a grammar constrains the answer."""
        return ""

    def opening(self, prompt: str, final: str | None) -> SpanState:
        """Return the state in which the output after this prompt begins. `final` is the content of
        a continued turn, None for a new turn."""
        if self.think is None:
            return "text"
        start, end = self.think.start, self.think.end
        if final is not None:
            return "reasoning" if final.rfind(start) > final.rfind(end) else "text"
        return "reasoning" if prompt.rstrip().endswith(start) else "text"

    def closing(self, *, has_tools: bool) -> str:
        """Return the text with which the model would end its thinking and begin its answer, or a
        call if it `has_tools`; "" if thinking cannot be ended."""
        end = self.think.end if self.think is not None else ""
        return end and end + self.behind_thinking

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages in the form of this family's templates, with reasoning under both of
        its names."""
        return [
            {"thinking": reasoning, **message}
            if (reasoning := message.get("reasoning_content")) is not None
            else dict(message)
            for message in messages
        ]

    def reader(
        self,
        tools: Sequence[Mapping[str, Any]],
        *,
        reads_thinking: bool,
        reads_tools: bool,
        opening: SpanState,
        stops: Automaton,
    ) -> Reader:
        """Return the reader of one choice. Without `reads_thinking` or `reads_tools`, the markup of
        thinking or of tool calls stays plain text. `stops` are searched for in the visible text
        only."""
        return SpanReader(
            think=self.think if reads_thinking else None,
            calls=self.calls if reads_tools else None,
            parse=self.parser(tools),
            opening=opening,
            stops=stops,
        )

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> ParseCalls:
        """Return the parser of the text between the marks around calls."""
        parse = self.parse
        if parse is None:
            return _no_calls
        return lambda raw: parse(raw, tools)


def _no_calls(raw: str) -> object:
    raise ValueError("this family makes no calls")
