"""Ollama's answers rendered: newline-delimited JSON, or one object.

Pure. Every line carries `message` (chat) or `response` (generate), the last one too, with
`done: true`, a reason and durations in nanoseconds. A tool call is sent whole, with its
arguments as an object, as soon as it is complete; one that was cut off is left out, as no object
can be made of it, and the reason of the end says that it was cut. There are no comments in this
dialect. A raw prompt has no channel for thinking: all that comes is its response. Each line says
when it was made, as the shell told it by `at`; a whole answer says when it was asked for plus how
long it took.
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
"""What the rest of shoal calls differently."""
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
        self._told: PromptAnswer | None = None
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
        """Return whether the terminal has been rendered; true at once when none is to come."""
        return self._closed or self._usage is not None or not self._parsed.requests

    def at(self, now_s: float) -> None:
        """Take the seconds since 1970 at which the lines from here on are made."""
        self._now_s = now_s

    def open(self) -> bytes:
        """Return nothing: the first line is the first token's."""
        return b""

    def render(self, entries: Sequence[Entry]) -> bytes:
        """Return the lines of these entries; nothing once the stream has ended."""
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
        """Return how a line begins now, up to the `Z` of its date; as `date` has dates."""
        second = int(self._now_s)
        if second != self._second:
            self._second = second
            self._dated = self._start + _whole_second(second).encode()
        return self._dated + b".%09d" % _nanosecond(self._now_s, second)

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
        end = end_object(usage, DONE_REASONS[self._reason], self._load_s) | _context(self._told)
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
                self._usage, self._told = entry.usage, entry.prompt
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
    """Return one object with everything."""
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
    """Return seconds since 1970 as RFC 3339 has dates, with nanoseconds."""
    second = int(at_s)
    return f"{_whole_second(second)}.{_nanosecond(at_s, second):09d}Z"


def _nanosecond(at_s: float, second: int) -> int:
    return int((at_s - second) * 1e9)


@functools.lru_cache(maxsize=64)
def _whole_second(second: int) -> str:
    at = datetime.datetime.fromtimestamp(second, tz=datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S")


def error_object(fault: HttpFault) -> OllamaError:
    """Return `{"error": "..."}`: Ollama's clients show this text and read nothing else, so the
    field at fault is in it."""
    field = faults.in_words(fault.field, FIELD_WORDS)
    if field is None or field in fault.message:
        return {"error": fault.message}
    return {"error": f"{field}: {fault.message}"}


def end_object(usage: Usage, reason: str, load_s: float) -> dict[str, Any]:
    """Return what the last line adds. The total is loading, waiting, prefill and decode."""
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
    """Return whether an answer ended where the model had not ended it."""
    return reason in ("length", "cancelled", "memory_pressure") or stop is not None


def _context(told: PromptAnswer | None) -> dict[str, list[int]]:
    """Return the tokens of prompt and answer, from which a later request may go on."""
    return {} if told is None else {"context": list(told.token_ids)}


def message_object(
    text: str,
    thinking: str,
    calls: Sequence[CollectedCall],
    *,
    first: int = 0,
    cut: bool = False,
) -> dict[str, Any]:
    """Return a chat message; calls whose arguments are no object are told as text.

    `first` is the index of the first of `calls` in the whole answer. `cut`: the answer was cut
    behind them, so that the last may lack the end of its arguments; it is then left out.
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
    """Return log-probabilities without what Ollama leaves out: bytes that are not known, and
    alternatives where there are none."""
    found = logprobs_list(logprobs)
    for one in found:
        one["top_logprobs"] = [_without_none(other) for other in one["top_logprobs"]] or None
    return [_without_none(one) for one in found]


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _total_s(usage: Usage, load_s: float) -> float:
    return load_s + usage.queue_s + usage.prefill_s + usage.decode_s


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
