"""Renders messages: the stream of events, and the whole answer.

Pure. Clients rely on these promises:
- Every event is named.
- A block opens before its deltas and closes before the next block opens. Block indexes ascend
  by one.
- A thinking block has a signature before it closes.
- A call's input comes in fragments of JSON text.
- The second-to-last event has both the stop reason and the usage.

The number of cached prompt tokens is known only at the end, so the first event reports none. Text
deltas are the hot path. The bytes around the text are prepared once, when the block opens. Each
delta only encodes its text as a JSON string and puts it between those bytes.
"""

from __future__ import annotations

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
    ToolCallDelta,
    Vectors,
)
from gateway.dialects import faults, sse
from gateway.dialects.anthropic.shapes import (
    ID_KEY,
    SIGNATURE,
    call_object,
    end_object,
    error_object,
    message_object,
    usage_object,
)
from gateway.dialects.collect import Collected, CollectedCall
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import json_bytes, partial_object, text_bytes
from gateway.dialects.faults import HttpFault

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
NOT_ENDED = {"stop_reason": None, "stop_sequence": None}
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":'
)
_DELTA_TAIL = b"}}\n\n"
_BLOCK_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_STARTS: dict[Channel, dict[str, str]] = {
    "text": {"type": "text", "text": ""},
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
}
_HEADS: dict[Channel, bytes] = {
    "text": _DELTA + b'"text_delta","text":',
    "reasoning": _DELTA + b'"thinking_delta","thinking":',
}
_SIGNED = _DELTA + b'"signature_delta","signature":' + json_bytes(SIGNATURE) + _DELTA_TAIL
_INPUT = _DELTA + b'"input_json_delta","partial_json":'


class MessagesStream:
    """The stream of one message."""

    def __init__(self, parsed: Parsed) -> None:
        self._parsed = parsed
        self._reason: FinishReason = "stop"
        self._stop: str | None = None
        self._usage: Usage | None = None
        self._closed = False
        self._index = -1
        self._block: Channel | int | None = None
        """The content of the open block: a channel (text or thinking), or the number of a tool
        call. None while no block is open."""
        self._head = b""

    @property
    def ended(self) -> bool:
        """Return whether the end of the stream or an error has been rendered."""
        return self._closed or self._usage is not None

    def open(self) -> bytes:
        """Return the first event: the message without content."""
        usage = Usage(prompt_tokens=self._parsed.prompt_tokens)
        message = message_object(self._parsed, [], NOT_ENDED, usage)
        return _event("message_start", {"message": message})

    def render(self, entries: Sequence[Entry]) -> bytes:
        """Return the events of these entries; nothing once the stream has ended."""
        out: list[bytes] = []
        for entry in entries:
            if self._closed:
                break
            if type(entry) is TokenDelta:
                if entry.text:
                    channel = entry.channel
                    if channel != self._block:
                        out.append(self._begin(channel, _STARTS[channel], _HEADS[channel]))
                    out += (self._head, text_bytes(entry.text), _DELTA_TAIL)
            else:
                out.append(self._rare(entry))
        return b"".join(out)

    def comment(self, text: str) -> bytes:
        """Return a ping, which carries no text; empty once the stream has ended."""
        return b"" if self.ended else PING

    def error(self, fault: HttpFault) -> bytes:
        """Return the error as the last event; empty if the stream is closed."""
        if self._closed:
            return b""
        self._closed = True
        error = {**error_object(fault), ID_KEY: self._parsed.answer_id}
        return sse.named_frame("error", json_bytes(error))

    def close(self) -> bytes:
        """Return the stop reason and the usage, then the last event; empty after an error."""
        if self._closed:
            return b""
        end = self._end_block()
        self._closed = True
        delta = end_object(self._reason, self._stop)
        usage = usage_object(self._usage or Usage())
        return end + _event("message_delta", {"delta": delta, "usage": usage}) + _STOP

    def _rare(self, entry: Entry) -> bytes:
        match entry:
            case ToolCallDelta():
                return self._part_of_call(entry)
            case ChoiceEnd():
                self._reason, self._stop = entry.finish_reason, entry.stop
                return self._end_block()
            case TokenDelta() | PromptTokens() | Vectors():
                return b""
            case PrefillProgress():
                return PING
            case Finished():
                self._usage = entry.usage
                return b""
            case Failed():
                return self.error(faults.of_failed(entry))

    def _part_of_call(self, entry: ToolCallDelta) -> bytes:
        start = b""
        if entry.call != self._block:
            call = call_object(entry.call_id or "", entry.name or "", {})
            start = self._begin(entry.call, call, _INPUT)
        if not entry.arguments:
            return start
        return start + self._head + text_bytes(entry.arguments) + _DELTA_TAIL

    def _begin(self, block: Channel | int, start: dict[str, Any], head: bytes) -> bytes:
        """Return the events that end the open block and begin a block for this channel or call."""
        end = self._end_block()
        self._index += 1
        self._block = block
        self._head = head % self._index
        fields = {"index": self._index, "content_block": start}
        return end + _event("content_block_start", fields)

    def _end_block(self) -> bytes:
        block, self._block = self._block, None
        if block is None:
            return b""
        signed = _SIGNED % self._index if block == "reasoning" else b""
        return signed + _BLOCK_STOP % self._index


def render_message(parsed: Parsed, collected: Collected) -> bytes:
    """Return a message with its thinking, text and calls; empty parts are omitted."""
    choice = collected.choices[0]
    content: list[dict[str, Any]] = []
    if choice.reasoning:
        thinking = {"type": "thinking", "thinking": choice.reasoning, "signature": SIGNATURE}
        content.append(thinking)
    if choice.text:
        content.append({"type": "text", "text": choice.text})
    content += (_block_of(call) for call in choice.calls)
    end = end_object(choice.finish_reason, choice.stop)
    return json_bytes(message_object(parsed, content, end, collected.usage))


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return sse.named_frame(kind, json_bytes({"type": kind, **fields}))


def _block_of(call: CollectedCall) -> dict[str, Any]:
    """Return the block of a tool call. It equals the block that a client assembles from a stream,
    so a truncated call has only the complete members of its input."""
    return call_object(call.call_id, call.name, partial_object(call.arguments))
