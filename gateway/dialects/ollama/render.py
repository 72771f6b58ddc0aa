"""Renders Ollama's answers: newline-delimited JSON, or one object.

Pure. Every line has `message` (chat) or `response` (generate). The last line also has `done: true`,
a reason and durations in nanoseconds. A tool call is sent whole once it is complete, with its
arguments as an object. A truncated call is omitted, since its arguments are not a valid object; the
reason of the end shows the truncation. The API has no comments. A raw prompt has no channel for
thinking, so all its output is the response. Each line has a time, which the shell sets with `at`. A
whole answer has the time of its request plus its duration.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bus.wire.errors import FinishReason
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    ChoiceEnd,
    Entry,
    Failed,
    Finished,
    PrefillProgress,
    PromptAnswer,
    PromptTokens,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
    Vectors,
)
from gateway.dialects import faults
from gateway.dialects.collect import Collected, CollectedCall
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import arguments_object, json_bytes, logprobs_list, text_bytes
from gateway.dialects.faults import HttpFault
from gateway.dialects.ollama.answers import OllamaError

CONTENT_TYPE = "application/x-ndjson"
Shape = Literal["chat", "generate"]
FIELD_WORDS = {
    "tools[].parameters": "tools[].function.parameters",
    "tools[].name": "tools[].function.name",
    "thinking": "think",
    "response_format": "format",
    "stop": "options.stop",
    "max_tokens": "options.num_predict",
    "history": "context",
}
"""Maps shoal's names of request fields to their names in this API, for errors."""
DONE_REASONS: Mapping[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "cancelled": "cancelled",
    "memory_pressure": "memory_pressure",
}


class OllamaStream:
    """The stream of one answer."""

    def __init__(self, parsed: Parsed, *, shape: Shape, load_s: float = 0.0) -> None:
        self._parsed = parsed
        self._shape: Shape = shape
        self._load_s = load_s
        self._usage: Usage | None = None
        self._prompt_answer: PromptAnswer | None = None
        self._reason: FinishReason = "stop"
        self._closed = False
        self._call: CollectedCall | None = None
        self._call_index = -1
        self._now_s = parsed.created_at_s
        self._second, self._dated = -1, b""
        self._start = b'{"model":' + text_bytes(parsed.model) + b',"created_at":"'
        if shape == "chat":
            head, tail = b'Z","message":{"role":"assistant","content":', b'},"done":false}\n'
        else:
            head, tail = b'Z","response":', b',"done":false}\n'
        self._text = (head, tail)
        self._thinking = (head + b'"","thinking":', tail)
        if parsed.requests and parsed.requests[0].prompt.kind != "chat":
            self._thinking = self._text

    @property
    def ended(self) -> bool:
        """Return whether the end of the stream or an error has been rendered. A stream without
        requests has ended from its start."""
        return self._closed or self._usage is not None or not self._parsed.requests

    def at(self, now_s: float) -> None:
        """Set the time of all lines from now on, in seconds since 1970."""
        self._now_s = now_s

    def open(self) -> bytes:
        """Return no bytes: the first line has the first token."""
        return b""

    def render(self, entries: Sequence[Entry]) -> bytes:
        """Return the lines of these entries. Returns nothing once the stream has ended."""
        out: list[bytes] = []
        start = self._line_start()
        for entry in entries:
            if self._closed:
                break
            if type(entry) is TokenDelta and not entry.logprobs:
                if entry.text:
                    head, tail = self._text if entry.channel == "text" else self._thinking
                    out += (start, head, text_bytes(entry.text), tail)
            else:
                out.append(self._rare(entry))
        return b"".join(out)

    def _line_start(self) -> bytes:
        """Return the beginning of a line, up to and including the `Z` that ends its date."""
        second = int(self._now_s)
        if second != self._second:
            self._second = second
            self._dated = self._start + _whole_second(second).encode()
        return self._dated + b".%09d" % _nanosecond(self._now_s, second)

    def comment(self, text: str) -> bytes:
        """Return no bytes: the API has no comments."""
        return b""

    def error(self, fault: HttpFault) -> bytes:
        """Return an `error` line as the last; empty if the stream is closed."""
        if self._closed:
            return b""
        self._closed = True
        return json_bytes(error_object(fault)) + b"\n"

    def close(self) -> bytes:
        """Return the last line; empty if the stream is closed."""
        if self._closed:
            return b""
        self._closed = True
        if not self._parsed.requests:
            return render_empty(self._parsed, shape=self._shape, load_s=self._load_s) + b"\n"
        usage = self._usage or Usage()
        end = end_object(usage, DONE_REASONS[self._reason], self._load_s) | _context(
            self._prompt_answer
        )
        return self._line({"role": "assistant", "content": ""}, **end)

    def _rare(self, entry: Entry) -> bytes:
        match entry:
            case TokenDelta():
                return self._with_logprobs(entry)
            case ToolCallDelta():
                return self._part_of_call(entry)
            case ChoiceEnd():
                self._reason = entry.finish_reason
                return self._complete_call(cut=is_cut(entry.finish_reason, entry.stop))
            case PrefillProgress() | PromptTokens() | Vectors():
                return b""
            case Finished():
                self._usage, self._prompt_answer = entry.usage, entry.prompt
                return b""
            case Failed():
                return self.error(faults.of_failed(entry))

    def _with_logprobs(self, entry: TokenDelta) -> bytes:
        thinks = entry.channel == "reasoning" and self._thinking is not self._text
        message: dict[str, Any] = {"role": "assistant", "content": "" if thinks else entry.text}
        if thinks:
            message["thinking"] = entry.text
            return self._line(message, done=False)
        return self._line(message, done=False, logprobs=_logprobs(entry.logprobs))

    def _part_of_call(self, entry: ToolCallDelta) -> bytes:
        done = b""
        if entry.call != self._call_index:
            done = self._complete_call()
            self._call_index = entry.call
        self._call = self._call or CollectedCall()
        self._call.add(entry)
        return done

    def _complete_call(self, *, cut: bool = False) -> bytes:
        call, self._call = self._call, None
        if call is None:
            return b""
        message = message_object("", "", [call], first=self._call_index, cut=cut)
        says = message["content"] or "tool_calls" in message
        return self._line(message, done=False) if says else b""

    def _line(self, message: dict[str, Any], **rest: Any) -> bytes:
        return json_bytes(_answer(self._parsed, self._now_s, self._shape, message, rest)) + b"\n"


def render_ollama(
    parsed: Parsed, collected: Collected, *, shape: Shape, load_s: float = 0.0
) -> bytes:
    """Return the whole answer as one object."""
    choice = collected.choices[0]
    cut = is_cut(choice.finish_reason, choice.stop)
    message = message_object(choice.text, choice.reasoning, choice.calls, cut=cut)
    rest = end_object(collected.usage, DONE_REASONS[choice.finish_reason], load_s)
    rest |= _context(collected.prompt)
    if parsed.requests[0].top_logprobs is not None:
        rest["logprobs"] = _logprobs(choice.logprobs)
    made_at_s = parsed.created_at_s + _total_s(collected.usage, load_s)
    return json_bytes(_answer(parsed, made_at_s, shape, message, rest))


def render_empty(parsed: Parsed, *, shape: Shape, load_s: float) -> bytes:
    """Return the answer to a body that only loads or unloads the model."""
    rest = end_object(Usage(), parsed.intent, load_s)
    message = message_object("", "", [])
    return json_bytes(_answer(parsed, parsed.created_at_s + load_s, shape, message, rest))


def date(at_s: float) -> str:
    """Return seconds since 1970 as an RFC 3339 date with nanoseconds."""
    second = int(at_s)
    return f"{_whole_second(second)}.{_nanosecond(at_s, second):09d}Z"


def _nanosecond(at_s: float, second: int) -> int:
    return int((at_s - second) * 1e9)


@functools.lru_cache(maxsize=64)
def _whole_second(second: int) -> str:
    at = datetime.datetime.fromtimestamp(second, tz=datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S")


def error_object(fault: HttpFault) -> OllamaError:
    """Return `{"error": "..."}`. Ollama's clients show only this text, so the text names the field
    at fault."""
    field = faults.in_words(fault.field, FIELD_WORDS)
    if field is None or field in fault.message:
        return {"error": fault.message}
    return {"error": f"{field}: {fault.message}"}


def end_object(usage: Usage, reason: str, load_s: float) -> dict[str, Any]:
    """Return the additional fields of the last line. The total duration is loading, waiting,
    prefill and decode together."""
    return {
        "done": True,
        "done_reason": reason,
        "total_duration": _ns(_total_s(usage, load_s)),
        "load_duration": _ns(load_s),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": _ns(usage.prefill_s),
        "eval_count": usage.completion_tokens,
        "eval_duration": _ns(usage.decode_s),
    }


def is_cut(reason: FinishReason, stop: str | None) -> bool:
    """Return whether an answer ended early: at its length limit, by cancellation, for lack of
    memory, or at a stop string."""
    return reason in ("length", "cancelled", "memory_pressure") or stop is not None


def _context(answer: PromptAnswer | None) -> dict[str, list[int]]:
    """Return the tokens of prompt and answer, from which a later request can continue."""
    return {} if answer is None else {"context": list(answer.token_ids)}


def message_object(
    text: str,
    thinking: str,
    calls: Sequence[CollectedCall],
    *,
    first: int = 0,
    cut: bool = False,
) -> dict[str, Any]:
    """Return a chat message. A call whose arguments are not an object becomes text.

    `first` is the index in the whole answer of the first of `calls`. `cut`: the answer was
    truncated after them, so the last call may be incomplete; it is then omitted.
    """
    shown: list[dict[str, Any]] = []
    for index, call in enumerate(calls, start=first):
        arguments = arguments_object(call.arguments)
        if cut and call is calls[-1] and (arguments is None or not call.arguments):
            continue
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
    parsed: Parsed,
    at_s: float,
    shape: Shape,
    message: Mapping[str, Any],
    rest: Mapping[str, Any],
) -> dict[str, Any]:
    head = {"model": parsed.model, "created_at": date(at_s)}
    if shape == "chat":
        return {**head, "message": message, **rest}
    thinking = {"thinking": message["thinking"]} if "thinking" in message else {}
    return {**head, "response": message["content"], **thinking, **rest}


def _logprobs(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return log-probabilities as Ollama shows them: without unknown bytes and empty
    alternatives."""
    tokens = logprobs_list(logprobs)
    for token in tokens:
        token["top_logprobs"] = [_without_none(other) for other in token["top_logprobs"]] or None
    return [_without_none(token) for token in tokens]


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _total_s(usage: Usage, load_s: float) -> float:
    return load_s + usage.queue_s + usage.prefill_s + usage.decode_s


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
