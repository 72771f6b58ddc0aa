"""Reads thinking, tool calls and stop strings out of a choice's text as it arrives.

Pure. Text in, spans out, the same however the text was cut into pieces. Stop strings end the
visible text, which never shows them; thinking and calls may contain them. A thinking block opens
only before anything visible was said (or right after a tool call), so that a model may write
about its own markers; a tool call opens wherever its marker stands outside thinking. Blank
lines at the edges of thinking, after it and around calls are layout, not content, and are
dropped. What opens as a call and is not one is given back as the text it was: nothing is lost. A
call in JSON that the limit cut off is a call with what there is of its arguments; before its name
is whole it is nothing, for markup is no answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from runner.text.prepared import SpanState
from runner.text.stops import Automaton, Scan, automaton


@dataclass(frozen=True, slots=True)
class Marks:
    """The texts that open and close a span. An empty `end` closes with the output."""

    start: str
    end: str


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
    """One tool call. `arguments` is the JSON text of an object, or of what the limit left of it."""

    name: str
    arguments: str
    start: int
    end: int


_CUT_CALL = re.compile(
    r"""\s*{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*"""
    r"""(?:,\s*(?:"(?:arguments|parameters)"\s*:\s*(?P<rest>.*)|.*))?$""",
    re.DOTALL,
)
_LINES = "\r\n"
_LAYOUT = " \t\r\n"
ParseCalls = Callable[[str], object]
"""The text between the markers -> {name, arguments} or a list of them; raises when malformed."""


class SpanReader:
    """The reader of one choice. `think` and `calls` None: that kind of span is plain text.

    `reasoning` says whether the text so far ends inside thinking; `stop` is the stop string
    that ended the visible text, after which nothing more is read.
    """

    __slots__ = (
        "_blank",
        "_calls",
        "_fresh",
        "_markers",
        "_offset",
        "_parse",
        "_raw",
        "_raw_start",
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
        self._trim = opening == "reasoning"  # leading white space is layout
        self._blank: str = ""  # trailing white space that may turn out to be layout
        self._raw = ""  # the text of an open call
        self._raw_start = 0
        self._offset = 0  # of the raw text taken so far
        self._stops = Scan(stops)
        self.stop: str | None = None
        if opening == "reasoning" and think is not None:
            self._state = "reasoning"
        self._markers = Scan(self._sought())

    @property
    def reasoning(self) -> bool:
        """Return whether the text so far ends inside thinking."""
        return self._state == "reasoning"

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
            raw, marks = self._raw, self._marks_of_calls()
            self._state = "text"
            is_read = (is_cut or not marks.end) and self._close(raw, out)
            if not is_read and not (is_cut and self._close_cut(raw, out)):
                self._say(marks.start + raw, out)
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
            sought.append(think.end)
        elif self._state == "call" and calls is not None:
            sought.extend([calls.end] if calls.end else [])
        else:
            sought.extend([calls.start] if calls is not None else [])
            sought.extend([think.start] if think is not None else [])
        return automaton(tuple(sought))

    def _enter(self, state: Literal["text", "reasoning", "call"]) -> None:
        self._state = state
        self._markers = Scan(self._sought())

    def _take(self, clear: str, out: list[Span | Call]) -> None:
        """Take text without markers, up to the new offset."""
        if not clear:
            return
        self._offset += len(clear)
        if self._state == "call":
            self._raw += clear
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
        self._trim = False
        self._fresh = self._fresh and kind == "reasoning"
        out.append(Span(kind, text, end - len(text), end))

    def _turn(self, found: str, out: list[Span | Call]) -> None:
        """Take a marker that was found: the offset passes it and the state changes."""
        calls = self._calls
        start = self._offset
        self._offset += len(found)
        if self._state == "reasoning":
            self._blank, self._trim = "", True
            self._enter("text")
        elif self._state == "call":
            self._end_call(found, out)
        elif calls is not None and found == calls.start:
            self._settle(self._stops.flush(), start, out)
            self._raw, self._raw_start = "", start
            self._enter("call")
        elif self._fresh and not self._stops.held.strip(_LAYOUT):
            self._stops.flush()
            self._blank, self._trim = "", True
            self._enter("reasoning")
        else:
            self._say(found, out)

    def _end_call(self, marker: str, out: list[Span | Call]) -> None:
        raw, marks = self._raw, self._marks_of_calls()
        if inside_json_string(raw):
            self._raw += marker
            return
        closed = self._close(raw, out)
        self._enter("text")
        if not closed:
            self._say(marks.start + raw + marker, out)

    def _close(self, raw: str, out: list[Span | Call]) -> bool:
        """Append the calls that `raw` makes; False, and nothing, where it makes none."""
        calls = read_calls(raw, self._parse)
        for name, arguments in calls:
            out.append(Call(name, arguments, self._raw_start, self._offset))
        if calls:
            self._blank, self._trim = "", True
            self._fresh = self._think is not None
        return bool(calls)

    def _close_cut(self, raw: str, out: list[Span | Call]) -> bool:
        """Append what there is of a call in JSON; False for what is no JSON object."""
        if not is_json_begun(raw):
            return False
        found = read_cut_call(raw)
        if found is not None:
            out.append(Call(*found, self._raw_start, self._offset))
        self._blank, self._trim = "", True
        return True


def is_json_begun(raw: str) -> bool:
    """Return whether text may be the beginning of a JSON object; nothing at all may be."""
    return raw.lstrip()[:1] in ("", "{")


def read_cut_call(raw: str) -> tuple[str, str] | None:
    """Return (name, what there is of the arguments) of a call in JSON that breaks off; None before
    its name is whole. There is at least the brace that opens them: no reader is to take the call
    for one without arguments."""
    begun = _CUT_CALL.match(raw)
    if begun is None:
        return None
    try:
        name = json.loads(begun["name"])
        name.encode()
    except ValueError:
        return None
    rest = begun["rest"] or ""
    if not rest.startswith("{"):
        rest = "{"
    try:
        _, end = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):
        end = len(rest)
    return (name, rest[:end]) if name else None


def read_calls(raw: str, parse: ParseCalls) -> list[tuple[str, str]]:
    """Return (name, arguments as JSON text) of each call in `raw`; none if one is malformed."""
    try:
        found = parse(raw)
        items = cast(list[object], found) if isinstance(found, list) else [found]
        return [_one_call(item) for item in items]
    except Exception:  # any error of a family's parser means that this is not a call
        return []


def _one_call(item: object) -> tuple[str, str]:
    if not isinstance(item, Mapping):
        raise ValueError("a call is an object")
    call = cast(Mapping[str, Any], item)
    name = call.get("name")
    arguments: object = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name, and arguments that are an object")
    name.encode()  # a lone surrogate in a name cannot be sent
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return name, json.dumps(arguments, allow_nan=False)
    return name, text


def inside_json_string(text: str) -> bool:
    """Return whether JSON text breaks off within a string; False for what is no JSON at all."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    inside = escaped = False
    for letter in text:
        if escaped:
            escaped = False
        elif letter == "\\" and inside:
            escaped = True
        elif letter == '"':
            inside = not inside
    return inside
