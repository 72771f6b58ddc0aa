"""Renders responses: the stream of events, and the whole answer.

Pure. Clients rely on these promises:
- Every event is named, and numbered from 0 without gaps.
- An item opens before its deltas. The last event of an item has the whole item and precedes the
  next item.
- An answer that has only calls has no message.
- The last event has the complete response.

Text deltas are the hot path. The bytes around the text are prepared once, when the item opens. Each
delta only encodes its text as a JSON string and puts it between those bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from bus.wire.errors import FinishReason
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    Channel,
    ChoiceEnd,
    Entry,
    Failed,
    Finished,
    PrefillProgress,
    PromptTokens,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
    Vectors,
)
from gateway.dialects import faults, sse
from gateway.dialects.collect import Collected, CollectedChoice
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import json_bytes, text_bytes
from gateway.dialects.faults import HttpFault
from gateway.dialects.openai.custom_tools import InputText, input_of, is_custom
from gateway.dialects.openai.responses import shapes
from gateway.dialects.openai.responses.answers import ResponseError
from gateway.dialects.openai.shapes import error_object

_DELTAS: dict[Channel, str] = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
}
_SUMMARY = "response.reasoning_summary"
_ARGUMENTS = "response.function_call_arguments"
_INPUT = "response.custom_tool_call_input"
_TAIL = b',"sequence_number":%d}\n\n'
_TEXT_TAIL = b',"logprobs":[]' + _TAIL


class ResponsesStream:
    """The stream of one response. `answer` is the complete response once the stream has ended."""

    def __init__(self, parsed: Parsed, load_s: float = 0.0) -> None:
        self.answer: bytes | None = None
        self._parsed = parsed
        self._request = parsed.requests[0].request_id
        self._load_s = load_s
        self._seq = 0
        self._reason: FinishReason = "stop"
        self._usage: Usage | None = None
        self._opened = self._closed = False
        self._output: list[dict[str, Any]] = []
        self._counts = {kind: itertools.count() for kind in ("text", "reasoning", "call")}
        self._item: Channel | int | None = None
        """The content of the open item: a channel (text or thinking), or the number of a tool call.
        None while no item is open."""
        self._added: dict[str, Any] = {}
        self._head, self._tail = b"", _TAIL
        self._summary_head = b""
        """The first bytes of a summary's delta, if the open item repeats its thinking as a
        summary."""
        self._pieces: list[str] = []
        self._input: InputText | None = None
        """Extracts the input text of the open call, if that is a call of a custom tool."""
        self._logprobs: list[dict[str, Any]] = []
        self._early_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def ended(self) -> bool:
        """Return whether the end of the request or an error has been rendered."""
        return self._closed or self._usage is not None

    def open(self) -> bytes:
        """Return the first two events. Both have the response without content: created, then in
        progress."""
        self._opened = True
        return b"".join(
            self._event(kind, {"response": self._response("in_progress")})
            for kind in ("response.created", "response.in_progress")
        )

    def render(self, entries: Sequence[Entry]) -> bytes:
        """Return the events of these entries; nothing once the stream has ended."""
        out: list[bytes] = []
        for entry in entries:
            if self._closed:
                break
            if type(entry) is TokenDelta and entry.channel == self._item and not entry.logprobs:
                text = entry.text
                if text:
                    self._pieces.append(text)
                    json_text = text_bytes(text)
                    out += (self._head, json_text, self._tail % self._seq)
                    self._seq += 1
                    if self._summary_head:
                        out.append(self._delta(self._summary_head, json_text))
            else:
                out.append(self._rare(entry))
        return b"".join(out)

    def comment(self, text: str) -> bytes:
        """Return a comment line; empty once the stream has ended."""
        return b"" if self.ended else sse.comment(text)

    def error(self, fault: HttpFault) -> bytes:
        """Return the error and then the failed response, each as an event; empty if the stream has
        ended. Text that was sent before stays in the response, as an incomplete item."""
        if self._closed:
            return b""
        start = b"" if self._opened else self.open()
        start += self._end_item("incomplete")
        self._closed = True
        # this event has two published schemas: with the error's fields, and with an error object
        error = error_object(fault)["error"]
        fields = {key: error[key] for key in ("code", "message", "param")}
        failure = self._event("error", {**fields, "error": error})
        return start + failure + self._last("failed", shapes.error_of(fault))

    def close(self) -> bytes:
        """Return the last event, with the complete response; empty after an error."""
        if self._closed:
            return b""
        end = self._end_item(shapes.status_of(self._reason))
        self._closed = True
        return end + self._last(shapes.STATUSES[self._reason])

    def _rare(self, entry: Entry) -> bytes:
        match entry:
            case TokenDelta():
                return self._first_or_with_logprobs(entry)
            case ToolCallDelta():
                return self._part_of_call(entry)
            case ChoiceEnd():
                self._reason = entry.finish_reason
                arguments = "".join(self._pieces) if isinstance(self._item, int) else None
                return self._end_item(shapes.status_of(self._reason, arguments))
            case PromptTokens() | Vectors():
                return b""
            case PrefillProgress():
                return sse.comment(f"prefill {entry.done}/{entry.total}")
            case Finished():
                self._usage = entry.usage
                return b""
            case Failed():
                self._usage = entry.usage
                return self.error(faults.of_failed(entry))

    # --- items ---------------------------------------------------------------------------------

    def _first_or_with_logprobs(self, entry: TokenDelta) -> bytes:
        """Return a delta that opens an item or has log-probabilities. If tokens have no text, their
        log-probabilities are sent with the next token that has text."""
        channel, is_text = entry.channel, entry.channel == "text"
        if channel != self._item and not entry.text:
            self._early_logprobs += entry.logprobs if is_text else ()
            return b""
        start = b"" if channel == self._item else self._begin_text(channel)
        self._pieces.append(entry.text)
        delta = self._head + text_bytes(entry.text)
        if not is_text:
            events = start + delta + self._numbered(_TAIL)
            if self._summary_head:
                events += self._delta(self._summary_head, text_bytes(entry.text))
            return events
        logprobs = shapes.scores((*self._early_logprobs, *entry.logprobs))
        self._early_logprobs = ()
        self._logprobs += logprobs
        return start + delta + b',"logprobs":' + json_bytes(logprobs) + self._numbered(_TAIL)

    def _begin_text(self, channel: Channel) -> bytes:
        is_text = channel == "text"
        make = shapes.text_item if is_text else shapes.reasoning_item
        start = self._begin(
            channel, make(self._request, next(self._counts[channel]), "in_progress", [])
        )
        part = shapes.text_part("") if is_text else shapes.reasoning_part("")
        start += self._event("response.content_part.added", {**self._place(0), "part": part})
        self._head = _delta_head(f"{_DELTAS[channel]}.delta", self._place(0))
        self._tail = _TEXT_TAIL if is_text else _TAIL
        self._summary_head = b""
        if not is_text and shapes.SUMMARY in self._parsed.tells:
            place = {**self._place(), "summary_index": 0}
            part = shapes.summary_part("")
            start += self._event(f"{_SUMMARY}_part.added", {**place, "part": part})
            self._summary_head = _delta_head(f"{_SUMMARY}_text.delta", place)
        return start

    def _part_of_call(self, entry: ToolCallDelta) -> bytes:
        start = b""
        if entry.call != self._item:
            call_id, name = entry.call_id or "", entry.name or ""
            number = next(self._counts["call"])
            custom = is_custom(self._parsed, name)
            make = shapes.custom_item if custom else shapes.call_item
            item = make(self._request, number, "in_progress", call_id, name, "")
            start = self._begin(entry.call, item)
            self._input = InputText() if custom else None
            self._head = _delta_head(f"{_INPUT if custom else _ARGUMENTS}.delta", self._place())
        self._pieces.append(entry.arguments)
        piece = entry.arguments if self._input is None else self._input.add(entry.arguments)
        return start + (self._delta(self._head, text_bytes(piece)) if piece else b"")

    def _delta(self, head: bytes, json_text: bytes) -> bytes:
        return head + json_text + self._numbered(_TAIL)

    def _begin(self, item: Channel | int, added: dict[str, Any]) -> bytes:
        """Return the events that complete the open item and begin a new item."""
        end = self._end_item("completed")
        self._item, self._added = item, added
        fields = {"output_index": len(self._output), "item": added}
        return end + self._event("response.output_item.added", fields)

    def _end_item(self, status: shapes.ItemStatus) -> bytes:
        """Return the events that end the open item, the last of them with the whole item. Empty if
        no item is open."""
        item, self._item = self._item, None
        if item is None:
            return b""
        text, self._pieces = "".join(self._pieces), []
        if isinstance(item, int) and self._input is not None:
            rest = self._input.end()
            end = self._delta(self._head, text_bytes(rest)) if rest else b""
            members = {"input": input_of(text)}
            end += self._event(f"{_INPUT}.done", {**self._place(), **members})
            whole = {**self._added, "status": status, **members}
        elif isinstance(item, int):
            done = {**self._place(), "name": self._added["name"], "arguments": text}
            end = self._event(f"{_ARGUMENTS}.done", done)
            whole = {**self._added, "status": status, "arguments": text}
        else:
            end, part = self._end_part(item, text)
            members = shapes.thought_members(self._parsed, text) if item == "reasoning" else {}
            whole = {**self._added, "status": status, "content": [part], **members}
        members = {"output_index": len(self._output), "item": whole}
        end += self._event("response.output_item.done", members)
        self._output.append(whole)
        return end

    def _end_part(self, channel: Channel, text: str) -> tuple[bytes, dict[str, Any]]:
        done: dict[str, Any] = {**self._place(0), "text": text}
        part = shapes.reasoning_part(text)
        if channel == "text":
            logprobs, self._logprobs = self._logprobs, []
            done["logprobs"] = logprobs
            part = shapes.text_part(text, logprobs)
        end = self._event(f"{_DELTAS[channel]}.done", done)
        fields = {**self._place(0), "part": part}
        end += self._event("response.content_part.done", fields)
        if channel == "reasoning" and shapes.SUMMARY in self._parsed.tells:
            place = {**self._place(), "summary_index": 0}
            end += self._event(f"{_SUMMARY}_text.done", {**place, "text": text})
            summary = shapes.summary_part(text)
            end += self._event(f"{_SUMMARY}_part.done", {**place, "part": summary})
        return end, part

    # --- bytes ---------------------------------------------------------------------------------

    def _place(self, *content: int) -> dict[str, Any]:
        """Return where a delta belongs: the open item and the index of the `content` part in it."""
        place = {"item_id": self._added["id"], "output_index": len(self._output)}
        return {**place, "content_index": content[0]} if content else place

    def _numbered(self, tail: bytes) -> bytes:
        self._seq += 1
        return tail % (self._seq - 1)

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        self._seq += 1
        event = {"type": kind, **fields, "sequence_number": self._seq - 1}
        return sse.named_frame(kind, json_bytes(event))

    def _response(
        self, status: shapes.Status, error: ResponseError | None = None
    ) -> dict[str, Any]:
        return shapes.response_object(
            self._parsed,
            status,
            output=self._output,
            usage=self._usage,
            error=error,
            load_s=self._load_s,
        )

    def _last(self, status: shapes.Status, error: ResponseError | None = None) -> bytes:
        response = self._response(status, error)
        self.answer = json_bytes(response)
        return self._event(shapes.LAST_EVENTS[status], {"response": response})


def _delta_head(kind: str, place: dict[str, Any]) -> bytes:
    """Return the first bytes of an event, up to its delta. The caller adds a JSON string and the
    last bytes."""
    start = json_bytes({"type": kind, **place})[:-1]
    return b"event: " + kind.encode() + b"\ndata: " + start + b',"delta":'


def render_response(parsed: Parsed, collected: Collected, load_s: float) -> bytes:
    """Return a response with its thinking, text and calls; empty parts are omitted."""
    choice = collected.choices[0]
    response = shapes.response_object(
        parsed,
        shapes.STATUSES[choice.finish_reason],
        output=_output_of(parsed, choice),
        usage=collected.usage,
        load_s=load_s,
    )
    return json_bytes(response)


def _output_of(parsed: Parsed, choice: CollectedChoice) -> list[dict[str, Any]]:
    """Return the items of an answer; the last item may be incomplete."""
    request = parsed.requests[0].request_id
    output: list[dict[str, Any]] = []
    if choice.reasoning:
        part = shapes.reasoning_part(choice.reasoning)
        item = shapes.reasoning_item(request, 0, "completed", [part])
        output.append({**item, **shapes.thought_members(parsed, choice.reasoning)})
    if choice.text:
        part = shapes.text_part(choice.text, shapes.scores(choice.logprobs))
        output.append(shapes.text_item(request, 0, "completed", [part]))
    for number, call in enumerate(choice.calls):
        custom = is_custom(parsed, call.name)
        make = shapes.custom_item if custom else shapes.call_item
        text = input_of(call.arguments) if custom else call.arguments
        output.append(make(request, number, "completed", call.call_id, call.name, text))
    if output:
        arguments = choice.calls[-1].arguments if choice.calls else None
        output[-1]["status"] = shapes.status_of(choice.finish_reason, arguments)
    return output
