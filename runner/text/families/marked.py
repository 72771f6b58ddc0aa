"""Reads thinking, tool calls and stop strings out of a choice's text as it arrives.

Pure. Text in, spans out, the same however the text was cut into pieces. Stop strings end the
visible text, which never shows them; thinking and calls may contain them. A thinking block opens
only before anything visible was said (or right after a tool call), so that a model may write
about its own markers; a tool call opens wherever its marker stands outside thinking. Blank
lines at the edges of thinking, after it and around calls are layout, not content, and are
dropped. A marker that stands twice counts once, and a call whose end is left out ends where the
next one opens. What opens as a call and is not one is given back as the text it was: nothing is
lost. The arguments of a call in JSON are told as they come, from their first name on; the limit may
cut them off. A call that it cut off before its name is whole is nothing, for markup is no answer;
of one that is no JSON there is the name, and a brace that no reader takes for whole arguments.
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


class SpanReader:
    """The reader of one choice. `think` and `calls` None: that kind of span is plain text.

    `reasoning` says whether the text so far ends inside thinking; `stop` is the stop string
    that ended the visible text, after which nothing more is read.
    """

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
        self._is_begun = False  # something visible was said
        self._trim = opening == "reasoning"  # leading white space is layout
        self._blank: str = ""  # trailing white space that may turn out to be layout
        self._call = CallText(0)  # the open one
        self._before = ""  # markers before it that stand twice
        self._closed: str = ""  # the end marker behind which nothing visible was said yet
        self._offset = 0  # of the raw text taken so far
        self._stops = Scan(stops)
        self.stop: str | None = None
        if opening == "reasoning" and think is not None:
            self._state = "reasoning"
        self._markers = Scan(self._sought())

    def look_for(self, stops: Automaton) -> None:
        """Look for these stop strings in the text from here on, where until now there were none."""
        self._stops = Scan(stops)

    @property
    def reasoning(self) -> bool:
        """Return whether the text so far ends inside thinking."""
        return self._state == "reasoning"

    @property
    def may_think(self) -> bool:
        """Return whether thinking may still open: before visible text, or within a call, behind
        which it may."""
        return self._think is not None and (self._fresh or self._state == "call")

    def feed(self, text: str) -> list[Span | Call]:
        """Take more text and return the spans that are certain now."""
        out: list[Span | Call] = []
        while self.stop is None:
            clear, found, text = self._markers.feed(text)
            self._take(clear, out)
            if found is None or self.stop is not None:
                break
            self._turn(found, out)
        return out

    def flush(self, *, is_cut: bool = False) -> list[Span | Call]:
        """End the output: return what was held back, as text; an open call without an end marker of
        its own is read, any other is given back, unless the limit cut it off (`is_cut`)."""
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
        """Take text without markers, up to the new offset."""
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
        """Take visible text that ends at the current offset: look for stop strings first."""
        if self._trim and not self._blank and not self._stops.held:
            text = text.lstrip(_LINES)
        clear, found, rest = self._stops.feed(text)
        if found is None:
            self._settle(clear, self._offset - len(self._stops.held), out)
            return
        self.stop = found
        self._emit(self._blank + clear, self._offset - len(rest) - len(found), out)

    def _settle(self, text: str, end: int, out: list[Span | Call]) -> None:
        """Emit text or reasoning that ends at offset `end`, less what may be layout."""
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

    def _turn(self, found: str, out: list[Span | Call]) -> None:
        """Take a marker that was found: the offset passes it and the state changes."""
        calls, think = self._calls, self._think
        is_first = not self._is_begun and not self._stops.held.strip(_LAYOUT)
        start = self._offset
        self._offset += len(found)
        if self._state == "reasoning" and think is not None and found == think.end:
            self._blank, self._trim, self._closed = "", True, found
            self._enter("text")
        elif self._state == "reasoning":
            if not self._trim:  # else it stands twice
                self._settle(found, self._offset, out)
        elif self._state == "call" and found == self._marks_of_calls().end:
            self._end_call(found, out)
        elif self._state == "call":
            self._open_again(found, out)
        elif found == self._closed and not self._stops.held:
            self._blank = ""  # it stands twice
        elif calls is not None and found == calls.start and (not calls.leads or is_first):
            self._settle(self._stops.flush(), start, out)
            self._call = CallText(start, calls.kept, passes_on=not calls.leads)
            self._before = ""
            self._enter("call")
        elif (
            think is not None
            and found == think.start
            and self._fresh
            and not self._stops.held.strip(_LAYOUT)
        ):
            self._stops.flush()
            self._blank, self._trim = "", True
            self._enter("reasoning")
        else:
            self._say(found, out)

    def _open_again(self, marker: str, out: list[Span | Call]) -> None:
        """Take a beginning of calls within an open one: it stands twice, or the end was left out;
        any other is text of the call."""
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
            self._blank = ""  # layout before the marker
        self._offset += len(marker)
        if not closed:
            opened = self._before + self._marks_of_calls().dropped
            self._say(opened + self._call.raw + marker, out)

    def _close(self, out: list[Span | Call], is_cut: bool = False) -> bool:
        """Append the calls that the open one makes; False, and nothing, where it makes none."""
        calls = self._call.end(self._parse, self._offset, is_cut=is_cut)
        out.extend(calls)
        if calls:
            self._blank, self._trim = "", True
            self._fresh = self._think is not None
            self._closed = self._marks_of_calls().end
        return bool(calls)

    def _is_readable(self, markup: tuple[str | None, bool] | None, is_cut: bool) -> bool:
        """Return whether an open call without its end may be one; what the limit cut off is none
        where it does not even begin as calls do."""
        if markup is not None:
            return not markup[1]
        if not is_cut and not self._marks_of_calls().leads:
            opened = read_cut_markup(self._call.raw)
            if opened is not None and opened[0] is not None:
                return True  # the model left out the end mark alone
        begins = is_json_begun(self._call.raw.lstrip().removeprefix("["))
        return not self._marks_of_calls().end or self._call.is_begun or (is_cut and begins)

    def _close_cut(self, out: list[Span | Call]) -> bool:
        """Append what there is of a call in JSON, the first in a list of them; False for what is
        none."""
        raw = self._call.raw.lstrip().removeprefix("[")
        if not is_json_begun(raw):
            return False
        found = read_cut_call(raw)
        if self._marks_of_calls().leads and not (found and _is_callable(found[0], self._parse)):
            return False
        self._cut_off(found, out)
        return True

    def _cut_off(self, found: tuple[str, str] | None, out: list[Span | Call]) -> None:
        """Append a call that the limit cut off, as far as it goes; None before its name is whole:
        then it is nothing."""
        if found is not None:
            out.append(Call(*found, self._call.start, self._offset))
        self._blank, self._trim = "", True


def _is_callable(name: str, parse: ParseCalls) -> bool:
    """Return whether a whole call of this name would be one."""
    return bool(read_calls(json.dumps({"name": name, "arguments": {}}), parse))
