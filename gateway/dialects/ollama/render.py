"""Ollama's answers rendered: newline-delimited JSON, or one object.

Pure. Every line carries `message` (chat) or `response` (generate), the last one too, with
`done: true`, a reason and durations in nanoseconds. A tool call is sent whole, with its
arguments as an object, as soon as it is complete; one that was cut off is text, as no object
can be made of it. There are no comments in this dialect. A raw prompt has no channel for
thinking: all that comes is its response.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import orjson

from bus.wire.errors import FinishReason
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    ChoiceEnd,
    Entry,
    Failed,
    Finished,
    PrefillProgress,
    PromptTokens,
    TokenDelta,
    ToolCallDelta,
)
from gateway.dialects import faults
from gateway.dialects.collect import Collected, CollectedCall
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import json_bytes, logprobs_list, text_bytes
from gateway.dialects.faults import HttpFault

CONTENT_TYPE = "application/x-ndjson"
Shape = Literal["chat", "generate"]
FIELD_WORDS = {
    "thinking": "think",
    "response_format": "format",
    "stop": "options.stop",
    "max_tokens": "options.num_predict",
}
"""What the rest of shoal calls differently."""
ERROR_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
DONE_REASONS: Mapping[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "cancelled": "cancelled",
}


class OllamaStream:
    """The stream of one answer."""

    def __init__(self, parsed: Parsed, *, shape: Shape, load_s: float = 0.0) -> None:
        self._parsed = parsed
        self._shape: Shape = shape
        self._load_s = load_s
        self._usage: Usage | None = None
        self._reason: FinishReason = "stop"
        self._closed = False
        self._call: CollectedCall | None = None
        self._call_index = -1
        head = json_bytes(line_head(parsed))[:-1]
        if shape == "chat":
            head, tail = head + b',"message":{"role":"assistant","content":', b'},"done":false}\n'
        else:
            head, tail = head + b',"response":', b',"done":false}\n'
        self._text = (head, tail)
        self._thinking = (head + b'"","thinking":', tail)
        if parsed.requests and parsed.requests[0].prompt.kind != "chat":
            self._thinking = self._text

    @property
    def ended(self) -> bool:
        """Return whether the terminal has been rendered; true at once when none is to come."""
        return self._closed or self._usage is not None or not self._parsed.requests

    def open(self) -> bytes:
        """Return nothing: the first line is the first token's."""
        return b""

    def render(self, entries: Sequence[Entry]) -> bytes:
        """Return the lines of these entries; nothing once the stream has ended."""
        out: list[bytes] = []
        for entry in entries:
            if self._closed:
                break
            if type(entry) is TokenDelta and not entry.logprobs:
                if entry.text:
                    head, tail = self._text if entry.channel == "text" else self._thinking
                    out += (head, text_bytes(entry.text), tail)
            else:
                out.append(self._rare(entry))
        return b"".join(out)

    def comment(self, text: str) -> bytes:
        """Return nothing: this API has no comments."""
        return b""

    def error(self, fault: HttpFault) -> bytes:
        """Return an `error` line, the last one; empty after the last."""
        if self._closed:
            return b""
        self._closed = True
        return json_bytes(error_object(fault)) + b"\n"

    def close(self) -> bytes:
        """Return the last line; empty when it was returned before."""
        if self._closed:
            return b""
        self._closed = True
        if not self._parsed.requests:
            return render_empty(self._parsed, shape=self._shape, load_s=self._load_s) + b"\n"
        usage = self._usage or Usage()
        end = end_object(usage, DONE_REASONS[self._reason], self._load_s)
        return self._line({"role": "assistant", "content": ""}, **end)

    def _rare(self, entry: Entry) -> bytes:
        match entry:
            case TokenDelta():
                return self._with_logprobs(entry)
            case ToolCallDelta():
                return self._part_of_call(entry)
            case ChoiceEnd():
                self._reason = entry.finish_reason
                return self._complete_call()
            case PrefillProgress() | PromptTokens():
                return b""
            case Finished():
                self._usage = entry.usage
                return b""
            case Failed():
                return self.error(faults.of_failed(entry))

    def _with_logprobs(self, entry: TokenDelta) -> bytes:
        thinks = entry.channel == "reasoning" and self._thinking is not self._text
        message: dict[str, Any] = {"role": "assistant", "content": "" if thinks else entry.text}
        if thinks:
            message["thinking"] = entry.text
            return self._line(message, done=False)
        return self._line(message, done=False, logprobs=logprobs_list(entry.logprobs))

    def _part_of_call(self, entry: ToolCallDelta) -> bytes:
        done = b""
        if entry.call != self._call_index:
            done = self._complete_call()
            self._call_index = entry.call
        self._call = self._call or CollectedCall()
        self._call.add(entry)
        return done

    def _complete_call(self) -> bytes:
        call, self._call = self._call, None
        if call is None:
            return b""
        return self._line(message_object("", "", [call], first=self._call_index), done=False)

    def _line(self, message: dict[str, Any], **rest: Any) -> bytes:
        return json_bytes(_answer(self._parsed, self._shape, message, rest)) + b"\n"


def render_ollama(
    parsed: Parsed, collected: Collected, *, shape: Shape, load_s: float = 0.0
) -> bytes:
    """Return one object with everything."""
    choice = collected.choices[0]
    message = message_object(choice.text, choice.reasoning, choice.calls)
    rest = end_object(collected.usage, DONE_REASONS[choice.finish_reason], load_s)
    if parsed.requests[0].top_logprobs is not None:
        rest["logprobs"] = logprobs_list(choice.logprobs)
    return json_bytes(_answer(parsed, shape, message, rest))


def render_empty(parsed: Parsed, *, shape: Shape, load_s: float) -> bytes:
    """Return the answer to a body that only loads or unloads the model."""
    rest = end_object(Usage(), parsed.intent, load_s)
    return json_bytes(_answer(parsed, shape, message_object("", "", []), rest))


def line_head(parsed: Parsed) -> dict[str, Any]:
    """Return the fields that every line begins with."""
    return {"model": parsed.model, "created_at": date(parsed.created_at_s)}


def date(at_s: float) -> str:
    """Return seconds since 1970 as the dates that Ollama's clients read."""
    at = datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def error_object(fault: HttpFault) -> dict[str, Any]:
    """Return `{"error": "..."}`: Ollama's clients show this text and read nothing else, so the
    field at fault is in it."""
    field = faults.in_words(fault.field, FIELD_WORDS)
    if field is None or field in fault.message:
        return {"error": fault.message}
    return {"error": f"{field}: {fault.message}"}


def end_object(usage: Usage, reason: str, load_s: float) -> dict[str, Any]:
    """Return what the last line adds. The total is loading, waiting, prefill and decode."""
    total_s = load_s + usage.queue_s + usage.prefill_s + usage.decode_s
    return {
        "done": True,
        "done_reason": reason,
        "total_duration": _ns(total_s),
        "load_duration": _ns(load_s),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": _ns(usage.prefill_s),
        "eval_count": usage.completion_tokens,
        "eval_duration": _ns(usage.decode_s),
    }


def message_object(
    text: str, thinking: str, calls: Sequence[CollectedCall], *, first: int = 0
) -> dict[str, Any]:
    """Return a chat message; calls whose arguments are no object are told as text.

    `first` is the index of the first of `calls` in the whole answer.
    """
    shown: list[dict[str, Any]] = []
    for index, call in enumerate(calls, start=first):
        arguments = _arguments(call.arguments)
        if arguments is None:
            text += call.arguments
            continue
        function = {"index": index, "name": call.name, "arguments": arguments}
        shown.append({"id": call.call_id, "function": function})
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if shown:
        message["tool_calls"] = shown
    return message


def _answer(
    parsed: Parsed, shape: Shape, message: Mapping[str, Any], rest: Mapping[str, Any]
) -> dict[str, Any]:
    if shape == "chat":
        return {**line_head(parsed), "message": message, **rest}
    thinking = {"thinking": message["thinking"]} if "thinking" in message else {}
    return {**line_head(parsed), "response": message["content"], **thinking, **rest}


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
