"""Reads thinking, tool calls and stop strings out of a choice's text as it arrives.

Pure. The reader takes text and returns spans, which do not depend on how the text was cut into
pieces. A stop string ends the visible text and is not part of it; thinking and calls may contain
stop strings. Thinking opens only before any visible text, or right after a tool call, so that a
model may write about its own markers. A tool call opens wherever its marker is outside thinking.
Blank lines at the edges of thinking, after it and around calls are layout, and are dropped. A
repeated marker counts once. A call without an end mark ends where the next call opens. Text that
opens like a call but is none is returned as text: nothing is lost.

The arguments of a call in JSON are sent to the client as they arrive, from their first name on; the
token limit may cut them off. A call that is cut off before its name is complete is dropped, because
markup must not reach the client as an answer. A cut-off call in another form than JSON is returned
as its name and an opening brace, which no reader takes for complete arguments.
"""

from __future__ import annotations

import json
from typing import Literal

from runner.text.families.call_text import (
    CallText,
    is_json_begun,
    read_calls,
    read_cut_call,
    read_cut_markup,
)
from runner.text.families.spans import Call, Marks, ParseCalls, Span
from runner.text.prepared import SpanState
from runner.text.stops import Automaton, Scan, automaton

_LINES = "\r\n"
_LAYOUT = " \t\r\n"


_NO_CALL = CallText(0)
"""The open call of a reader that reads no calls; nothing writes to it."""


class SpanReader:
    """Reads the thinking, calls and text of one choice. If `think` or `calls` is None, the reader
    does not recognise that kind of span, and its markup is plain text. `stop` is the stop string
    that ended the visible text; nothing is read after it."""

    __slots__ = (
        "_before",
        "_blank",
        "_call",
        "_calls",
        "_closed",
        "_fresh",
        "_is_begun",
        "_markers",
        "_offset",
        "_parse",
        "_state",
        "_stops",
        "_think",
        "_trim",
        "stop",
    )

    def __init__(
        self,
        *,
        think: Marks | None,
        calls: Marks | None,
        parse: ParseCalls,
        opening: SpanState,
        stops: Automaton,
    ) -> None:
        self._think = think
        self._calls = calls
        self._parse = parse
        self._state: Literal["text", "reasoning", "call"] = "text"
        self._fresh = think is not None  # nothing visible yet: thinking may still open
        self._is_begun = False  # visible text was emitted
        self._trim = opening == "reasoning"  # leading white space is layout
        self._blank: str = ""  # trailing white space that may turn out to be layout
        self._call = _NO_CALL if calls is None else CallText(0)  # the open one
        self._before = ""  # repeated markers before it
        self._closed: str = ""  # the last end marker, while no visible text follows it
        self._offset = 0  # of the raw text taken so far
        self._stops = Scan(stops)
        self.stop: str | None = None
        if opening == "reasoning" and think is not None:
            self._state = "reasoning"
        self._markers = Scan(self._sought())

    def look_for(self, stops: Automaton) -> None:
        """Search the visible text for these stop strings from now on; earlier text is not
        searched."""
        self._stops = Scan(stops)

    @property
    def reasoning(self) -> bool:
        """Return whether the text so far ends inside thinking."""
        return self._state == "reasoning"

    @property
    def may_think(self) -> bool:
        """Return whether thinking may still open: before visible text, or after an open call."""
        return self._think is not None and (self._fresh or self._state == "call")

    def feed(self, text: str) -> list[Span | Call]:
        """Add `text` to the output; return the spans of it that later text cannot change."""
        out: list[Span | Call] = []
        while self.stop is None:
            clear, marker, text = self._markers.feed(text)
            self._take(clear, out)
            if marker is None or self.stop is not None:
                break
            self._turn(marker, out)
        return out

    def flush(self, *, is_cut: bool = False) -> list[Span | Call]:
        """End the output; return the remaining spans. An open call is parsed if it needs no end
        marker; otherwise it becomes text. `is_cut`: the token limit cut the output off; then an
        open call is returned as far as it goes."""
        out: list[Span | Call] = []
        if self.stop is None:
            self._take(self._markers.flush(), out)
        if self._state == "call" and self.stop is None:
            marks = self._marks_of_calls()
            markup = read_cut_markup(self._call.raw) if is_cut and not marks.leads else None
            if markup is not None and not markup[1]:
                self._call.drop_open()
            is_read = self._is_readable(markup, is_cut) and self._close(out, is_cut)
            self._state = "text"
            if is_read:
                self._say(self._call.left, out)
            elif markup is not None:
                self._cut_off(None if markup[0] is None else (markup[0], "{"), out)
            elif not (is_cut and self._close_cut(out)):
                self._say(self._before + marks.dropped + self._call.raw, out)
        if self._state == "text" and self.stop is None:
            self._settle(self._stops.flush(), self._offset, out)
            if not self._trim:
                self._emit(self._blank, self._offset, out)
        self._blank = ""
        return out

    def _marks_of_calls(self) -> Marks:
        assert self._calls is not None
        return self._calls

    def _sought(self) -> Automaton:
        think, calls = self._think, self._calls
        sought: list[str] = []
        if self._state == "reasoning" and think is not None:
            sought += (think.end, think.start)
        elif self._state == "call" and calls is not None:
            sought += (calls.end, calls.dropped)
        else:
            for marks in filter(None, (calls, think)):
                sought += (marks.start, marks.end)
        return automaton(tuple(filter(None, sought)))

    def _enter(self, state: Literal["text", "reasoning", "call"]) -> None:
        self._state = state
        self._markers = Scan(self._sought())

    def _take(self, clear: str, out: list[Span | Call]) -> None:
        """Process text that contains no markers and ends at the new offset."""
        if not clear:
            return
        self._offset += len(clear)
        if self._state == "call":
            out.extend(self._call.take(clear, self._offset))
        elif self._state == "reasoning":
            self._settle(clear, self._offset, out)
        else:
            self._say(clear, out)

    def _say(self, text: str, out: list[Span | Call]) -> None:
        """Process visible text that ends at the current offset: search it for stop strings and emit
        it."""
        if self._trim and not self._blank and not self._stops.held_text:
            text = text.lstrip(_LINES)
        clear, stop, rest = self._stops.feed(text)
        if stop is None:
            self._settle(clear, self._offset - len(self._stops.held_text), out)
            return
        self.stop = stop
        self._emit(self._blank + clear, self._offset - len(rest) - len(stop), out)

    def _settle(self, text: str, end: int, out: list[Span | Call]) -> None:
        """Emit text or reasoning that ends at offset `end`, without white space that may be
        layout."""
        text = self._blank + text
        if self._state == "reasoning":
            text = text.lstrip(_LAYOUT) if self._trim else text
            body = text.rstrip(_LAYOUT)
        elif self._fresh or self._trim or self._calls is not None:
            body = text.rstrip(_LAYOUT)
        else:
            body = text
        self._blank = text[len(body) :]
        self._emit(body, end - len(self._blank), out)

    def _emit(self, text: str, end: int, out: list[Span | Call]) -> None:
        if not text:
            return
        kind = "reasoning" if self._state == "reasoning" else "text"
        self._trim, self._closed = False, ""
        self._fresh = self._fresh and kind == "reasoning"
        self._is_begun = self._is_begun or kind == "text"
        out.append(Span(kind, text, end - len(text), end))

    def _turn(self, marker: str, out: list[Span | Call]) -> None:
        """Process a marker: move the offset to its end and change the state."""
        calls, think = self._calls, self._think
        is_first = not self._is_begun and not self._stops.held_text.strip(_LAYOUT)
        start = self._offset
        self._offset += len(marker)
        if self._state == "reasoning" and think is not None and marker == think.end:
            self._blank, self._trim, self._closed = "", True, marker
            self._enter("text")
        elif self._state == "reasoning":
            if not self._trim:  # else it is repeated
                self._settle(marker, self._offset, out)
        elif self._state == "call" and marker == self._marks_of_calls().end:
            self._end_call(marker, out)
        elif self._state == "call":
            self._open_again(marker, out)
        elif marker == self._closed and not self._stops.held_text:
            self._blank = ""  # it is repeated
        elif calls is not None and marker == calls.start and (not calls.leads or is_first):
            self._settle(self._stops.flush(), start, out)
            self._call = CallText(start, calls.visible, passes_on=not calls.leads)
            self._before = ""
            self._enter("call")
        elif (
            think is not None
            and marker == think.start
            and self._fresh
            and not self._stops.held_text.strip(_LAYOUT)
        ):
            self._stops.flush()
            self._blank, self._trim = "", True
            self._enter("reasoning")
        else:
            self._say(marker, out)

    def _open_again(self, marker: str, out: list[Span | Call]) -> None:
        """Process a start marker within an open call. The marker is a repetition, or the end mark
        of the open call is missing; otherwise the marker is text of the call."""
        call = self._call
        if not call.raw.strip():
            self._before += marker + call.raw
            self._call = CallText(call.start)
            return
        if call.inside_string or not call.is_whole(self._parse):
            out.extend(call.take(marker, self._offset))
            return
        self._offset -= len(marker)
        self._close(out)
        self._say(call.left, out)
        self._offset += len(marker)
        self._settle(self._stops.flush(), self._offset - len(marker), out)
        self._call, self._before = CallText(self._offset - len(marker)), ""

    def _end_call(self, marker: str, out: list[Span | Call]) -> None:
        if self._call.inside_string:
            out.extend(self._call.take(marker, self._offset))
            return
        self._offset -= len(marker)
        closed = self._close(out)
        self._enter("text")
        if closed:
            self._say(self._call.left, out)
            self._settle(self._stops.flush(), self._offset, out)
            self._blank = ""  # layout before the marker
        self._offset += len(marker)
        if not closed:
            opened = self._before + self._marks_of_calls().dropped
            self._say(opened + self._call.raw + marker, out)

    def _close(self, out: list[Span | Call], is_cut: bool = False) -> bool:
        """Close the open tool call: append the calls that its text contains to `out`. Return
        whether there are any."""
        calls = self._call.end(self._parse, self._offset, is_cut=is_cut)
        out.extend(calls)
        if calls:
            self._blank, self._trim = "", True
            self._fresh = self._think is not None
            self._closed = self._marks_of_calls().end
        return bool(calls)

    def _is_readable(self, markup: tuple[str | None, bool] | None, is_cut: bool) -> bool:
        """Return whether the text of a tool call without an end mark may be read as a call. If the
        token limit cut the text off, it must at least begin like a call. `markup` is the result of
        `read_cut_markup`."""
        if markup is not None:
            return not markup[1]
        if not is_cut and not self._marks_of_calls().leads:
            opened = read_cut_markup(self._call.raw)
            if opened is not None and opened[0] is not None:
                return True  # the model only left out the end mark
        begins = is_json_begun(self._call.raw.lstrip().removeprefix("["))
        return not self._marks_of_calls().end or self._call.is_begun or (is_cut and begins)

    def _close_cut(self, out: list[Span | Call]) -> bool:
        """Append a cut-off call in JSON as far as it goes, also the first in a list of calls.
        Return False if the text is no such call."""
        raw = self._call.raw.lstrip().removeprefix("[")
        if not is_json_begun(raw):
            return False
        call = read_cut_call(raw)
        if self._marks_of_calls().leads and not (call and _is_callable(call[0], self._parse)):
            return False
        self._cut_off(call, out)
        return True

    def _cut_off(self, call: tuple[str, str] | None, out: list[Span | Call]) -> None:
        """Append a cut-off call (its name and its arguments so far). If `call` is None, append
        nothing, because not even the name is complete."""
        if call is not None:
            out.append(Call(*call, self._call.start, self._offset))
        self._blank, self._trim = "", True


def _is_callable(name: str, parse: ParseCalls) -> bool:
    """Return whether the parser accepts a complete call with this name."""
    return bool(read_calls(json.dumps({"name": name, "arguments": {}}), parse))
