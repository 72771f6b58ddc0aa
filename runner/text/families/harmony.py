"""Reads gpt-oss's messages, which have channels, and opens them: OpenAI's harmony format.

Pure. An output is a sequence of `<|start|>assistant<|channel|>NAME<|message|>TEXT<|end|>`. The
channel `analysis` is thinking, `final` is the answer, `commentary` an answer's preamble. A message
`to=functions.NAME` is a call with JSON arguments. The prompt ends with `<|start|>assistant`, so the
output begins within a header. Markers and headers never become text. A malformed call is returned
as text, without its header. If a marker is missing or repeated, no text is lost: text that cannot
belong to a header belongs to the message. Source:
developers.openai.com/cookbook/articles/openai-harmony.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from runner.text.families.call_forms import call_form
from runner.text.families.call_text import CallText
from runner.text.families.family import Family, Reader
from runner.text.families.spans import Call, Marks, ParseCalls, Span
from runner.text.prepared import SpanState
from runner.text.stops import Automaton, Scan, automaton

MARKERS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>",
           "<|constrain|>")  # fmt: skip
TURN = "<|start|>assistant"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
COMMENTARY = "<|channel|>commentary"
HEADER_CHARACTERS = 400
"""The most characters of a message header. Longer text that names no channel is an answer without a
header."""
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"(?:<\|channel\|>\s*|^\s*|assistant\s*)(analysis|commentary|final)")
_HEADER = re.compile(
    r"\s*(?:assistant)?\s*(?:to=[^\s<]+)?\s*(?:<\|channel\|>\s*)*(?:analysis|commentary|final)?"
    r"\s*(?:to=[^\s<]+)?\s*(?:<\|constrain\|>\s*)*(?:json|code)?\s*"
)
_WORDS = ("assistant", "analysis", "commentary", "final", "to=", "json", "code")
_MARKERS = re.compile("|".join(map(re.escape, MARKERS)))
_ENDS = ("<|start|>", "<|end|>", "<|call|>", "<|return|>")
_FUNCTIONS = "functions."
_NO_TOOLS = ("user", "assistant", "all", "self")
"""Names that a message can be addressed to and that are not tools."""


@dataclass(frozen=True, slots=True)
class HarmonyFamily(Family):
    """The output format of gpt-oss and of models derived from it."""

    @property
    def thinks_unasked(self) -> bool:
        """Return True: only a prompt that opens the answer prevents thinking."""
        return True

    def prefill(self, *, thinking: bool, is_held: bool, has_tools: bool) -> str:
        """Return the text that opens thinking if the model thinks and a grammar constrains the
        answer after it. Without thinking, return the text that opens the answer. Otherwise return
        "". Also return "" with tools, because calls have their own headers."""
        if has_tools:
            return ""
        if is_held:
            return ANALYSIS if thinking else FINAL
        return "" if thinking else FINAL

    def opening(self, prompt: str, final: str | None) -> SpanState:
        """Return "header" if the prompt ends with the beginning of a turn, "reasoning" if it ends
        with the opening of thinking, else "text"."""
        text = prompt.rstrip()
        if text.endswith(ANALYSIS):
            return "reasoning"
        return "header" if final is None and text.endswith(TURN) else "text"

    def closing(self, *, has_tools: bool) -> str:
        """Return the text that ends thinking and opens the answer. With tools it opens the channel
        of calls, which may also contain plain text."""
        return f"<|end|>{TURN}{COMMENTARY if has_tools else FINAL}"

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages with the thinking and preamble of a turn with calls joined, because
        the template accepts only one of them."""
        made = Family.messages(self, messages)
        for message in made:
            if message.get("tool_calls") and message.get("thinking") and message.get("content"):
                joined = f"{message['thinking']}\n\n{message['content']}"
                message |= {"thinking": joined, "reasoning_content": joined, "content": ""}
        return made

    def reader(
        self,
        tools: Sequence[Mapping[str, Any]],
        *,
        reads_thinking: bool,
        reads_tools: bool,
        opening: SpanState,
        stops: Automaton,
    ) -> Reader:
        """Return the reader of one choice. In a conversation it reads the channel of thinking even
        if the request did not ask for thinking. In the continuation of a raw prompt it reads
        nothing as markup, because the prompt has no turns."""
        if not reads_thinking:
            return Family.reader(
                self, tools, reads_thinking=False, reads_tools=False, opening="text", stops=stops
            )
        names = frozenset(str(tool["function"]["name"]) for tool in tools)
        return HarmonyReader(opening=opening, stops=stops, reads_calls=reads_tools, tools=names)


def harmony() -> HarmonyFamily:
    """Return the family of gpt-oss. With a grammar, only the text after the end mark of `think` is
    constrained."""
    return HarmonyFamily(
        think=Marks(ANALYSIS, f"<|end|>{TURN}{FINAL}"),
        calls=Marks("<|channel|>commentary to=functions.", "<|call|>"),
        format="harmony",
        parse=None,
        inner=MARKERS,
        form=call_form("harmony", None, ""),
    )


class HarmonyReader:
    """Reads one choice in gpt-oss's format: implements `runner.text.families.Reader`."""

    def __init__(
        self,
        *,
        opening: SpanState,
        stops: Automaton,
        reads_calls: bool,
        tools: frozenset[str] = frozenset(),
    ) -> None:
        """`tools` are the names of tools; a call may omit the prefix `functions.` of a name."""
        self._tools = tools
        self._state: Literal["header", "text", "reasoning", "call"] = opening
        self._reads_calls = reads_calls
        self._header = ""
        self._is_bare = opening == "header"  # no marker was seen: it may be an answer without one
        self._name = ""
        self._call = CallText(0)
        self._offset = 0
        self._markers = Scan(automaton(MARKERS))
        self._stops = Scan(stops)
        self.stop: str | None = None

    @property
    def reasoning(self) -> bool:
        """Return whether the text so far ends inside thinking."""
        return self._state == "reasoning"

    @property
    def may_think(self) -> bool:
        """Return whether the text so far ends in a header, which may open thinking."""
        return self._state == "header"

    def look_for(self, stops: Automaton) -> None:
        """Search the visible text for these stop strings from now on; earlier text is not
        searched."""
        self._stops = Scan(stops)

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
        """End the output; return the remaining spans. A call that the token limit cut off is
        returned as far as it goes."""
        out: list[Span | Call] = []
        if self.stop is None:
            self._take(self._markers.flush(), out)
        if self._is_bare and self.stop is None:
            self._answer_without_header(out)
        if self._state == "header" and self.stop is None:
            self._keep_text(out, is_cut=is_cut)
        if self.stop is None:
            self._end_message(out, is_cut=is_cut)
        return out

    def _take(self, clear: str, out: list[Span | Call]) -> None:
        """Process text that contains no markers, by the current state."""
        if not clear:
            return
        self._offset += len(clear)
        if self._state == "header":
            self._header += clear
            if self._is_bare and len(self._header) > HEADER_CHARACTERS:
                self._answer_without_header(out)
            elif len(self._header) > HEADER_CHARACTERS:
                self._keep_text(out)
        elif self._state == "call":
            out.extend(self._call.take(clear, self._offset))
        else:
            self._say(clear, out)

    def _turn(self, marker: str, out: list[Span | Call]) -> None:
        """Process a marker. Headers begin at `<|start|>` or `<|channel|>`, message bodies begin at
        `<|message|>`."""
        self._is_bare = False
        in_header = self._state == "header"
        if in_header and marker == "<|message|>":
            self._offset += len(marker)
            self._open_body()
            return
        if in_header and marker in _ENDS:
            self._keep_text(out)
        if self._state != "header" and (
            in_header or marker not in ("<|message|>", "<|constrain|>")
        ):
            self._end_message(out)
            self._state, self._header = "header", ""
        self._offset += len(marker)
        if self._state == "header":
            self._header = "" if marker in _ENDS else self._header + marker

    def _keep_text(self, out: list[Span | Call], *, is_cut: bool = False) -> None:
        """Enter the body of a message whose header has no end, if text follows the header.
        `is_cut`: the token limit may have cut off a word of the header."""
        match = _HEADER.match(self._header)
        assert match is not None, "the pattern did not match, though it should match any text"
        text = _MARKERS.sub("", self._header[match.end() :])
        bare = text.strip()
        if not bare or (is_cut and any(word.startswith(bare) for word in _WORDS)):
            return
        self._header = self._header[: match.end()]
        self._open_body()
        if self._state == "call":
            out.extend(self._call.take(text, self._offset))
        else:
            self._say(text, out)

    def _open_body(self) -> None:
        """Begin the body of a message, in the channel or for the tool that its header names."""
        assert self._state == "header"
        header, self._header = self._header, ""
        recipient, channels = _RECIPIENT.search(header), _CHANNEL.findall(header)
        is_analysis = channels[-1:] == ["analysis"]
        to = "" if recipient is None else recipient[1]
        name = to.removeprefix(_FUNCTIONS)
        is_tool = name != to or name in self._tools or not (is_analysis or to in _NO_TOOLS)
        if name and is_tool and self._reads_calls:
            self._state, self._name = "call", name
            self._call = CallText(self._offset, name=self._name)
        else:
            self._state = "reasoning" if is_analysis else "text"

    def _end_message(self, out: list[Span | Call], *, is_cut: bool = False) -> None:
        """End the body of a message. Text that was kept back because a stop string might begin in
        it is emitted."""
        if self._state == "call":
            call, parse = self._call, _whole_arguments(self._name)
            if is_cut and not call.is_begun:
                calls = [Call(self._name, call.raw or "{", call.start, self._offset)]
            else:
                calls = call.end(parse, self._offset, is_cut=is_cut)
            out.extend(calls)
            self._state = "text"
            self._say(call.left if calls else call.raw, out)
        if self._state == "text" and self.stop is None:
            self._emit(self._stops.flush(), self._offset, out)

    def _answer_without_header(self, out: list[Span | Call]) -> None:
        """Treat the text so far, which has no channel and so is no header, as an answer."""
        text, self._header, self._is_bare = self._header, "", False
        self._state = "text"
        self._say(text, out)

    def _say(self, text: str, out: list[Span | Call]) -> None:
        """Process text of a message body that ends at the current offset. A stop string ends
        visible text."""
        if self._state == "reasoning":
            self._emit(text, self._offset, out)
            return
        clear, stop, rest = self._stops.feed(text)
        held = len(self._stops.held_text) if stop is None else len(rest) + len(stop)
        self._emit(clear, self._offset - held, out)
        self.stop = stop

    def _emit(self, text: str, end: int, out: list[Span | Call]) -> None:
        if text:
            kind = "reasoning" if self._state == "reasoning" else "text"
            out.append(Span(kind, text, end - len(text), end))


def _whole_arguments(name: str) -> ParseCalls:
    """Return a parser for a body that contains the arguments of the tool `name`."""
    return lambda raw: {"name": name, "arguments": cast(object, json.loads(raw or "{}"))}
