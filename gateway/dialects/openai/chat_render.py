"""Renders chat completions: the stream of chunks, and the whole answer.

Pure. Clients rely on these promises:
- `role` comes in the first delta of a choice and in no other.
- Deltas have no null fields.
- A tool call's id and name come once, its arguments in fragments of text, always with `index`.
- A finish reason comes in a chunk of its own.

Text deltas are the hot path. The bytes around the text are prepared once, when the stream begins.
Each delta only encodes its text as a JSON string and puts it between those bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.wire.errors import FinishReason
from bus.wire.messages.tokens import (
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
from gateway.dialects.collect import Collected, CollectedCall, CollectedChoice, Collector
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import json_bytes, logprobs_list, text_bytes
from gateway.dialects.openai.answers import CallDelta, CustomCallDelta, CustomDelta
from gateway.dialects.openai.custom_tools import InputText, input_of, is_custom
from gateway.dialects.openai.shapes import FINISHES, OpenAIStream, finish_bytes, whole_answer

CHUNK = "chat.completion.chunk"
FUNCTION_CALL = "function_call"
"""In `Parsed.tells`: the body has functions, so calls and finish reasons have the old form."""
_DELTA_TAIL = b'},"finish_reason":null}]}\n\n'


class ChatStream(OpenAIStream):
    """The stream of one request's answer. If the answer is to be stored, `answer` has the whole
    answer once the stream has ended successfully."""

    def __init__(self, parsed: Parsed) -> None:
        super().__init__(parsed, CHUNK)
        self.answer: bytes | None = None
        self._whole = None if parsed.to_keep is None else Collector(parsed.requests)
        self._inputs = _CustomInputs(parsed)
        start = self._start()
        self._starts = [
            start + b',"choices":[{"index":%d,"delta":{' % index for index in range(parsed.choices)
        ]
        self._texts = [start + b'"content":' for start in self._starts]
        self._reasonings = [start + b'"reasoning_content":' for start in self._starts]

    def open(self) -> bytes:
        """Return the first delta of each choice, which has only the role."""
        role = b'"role":"assistant"'
        return b"".join(start + role + _DELTA_TAIL for start in self._starts)

    def render(self, entries: Sequence[Entry]) -> bytes:
        """Return the frames of these entries; nothing once the stream has ended."""
        out: list[bytes] = []
        if self._whole is not None and not self._closed:
            self._whole.add(entries)
        texts, reasonings = self._texts, self._reasonings
        for entry in entries:
            if self._closed:
                break
            if type(entry) is TokenDelta:
                if entry.logprobs and entry.channel == "text":
                    out.append(self._with_logprobs(entry))
                elif entry.text:
                    heads = texts if entry.channel == "text" else reasonings
                    out += (heads[entry.choice], text_bytes(entry.text), _DELTA_TAIL)
            else:
                out.append(self._rare(entry))
        return b"".join(out)

    def close(self) -> bytes:
        """Return the last bytes. An answer to be stored is complete from then on."""
        if self._whole is not None and self._whole.ended and not self._closed:
            self.answer = render_chat(self._parsed, self._whole.collected[0])
        return super().close()

    def _call(self, choice: int, delta: CallDelta | CustomCallDelta | None) -> bytes:
        if delta is None:
            return b""
        return self._starts[choice] + b'"tool_calls":' + json_bytes([delta]) + _DELTA_TAIL

    def _with_logprobs(self, entry: TokenDelta) -> bytes:
        return b"".join(
            (
                self._texts[entry.choice],
                text_bytes(entry.text),
                b'},"logprobs":',
                json_bytes(logprobs_object(entry.logprobs)),
                b',"finish_reason":null}]}\n\n',
            )
        )

    def _rare(self, entry: Entry) -> bytes:
        match entry:
            case ToolCallDelta() if FUNCTION_CALL in self._parsed.tells:
                function = json_bytes(call_delta(entry)["function"])
                return self._starts[entry.choice] + b'"function_call":' + function + _DELTA_TAIL
            case ToolCallDelta():
                return self._call(entry.choice, self._inputs.delta(entry))
            case ChoiceEnd():
                finish = finish_bytes(_finish_of(self._parsed, entry.finish_reason))
                last = self._starts[entry.choice] + b"},%b}]" % finish
                left = [self._call(entry.choice, call) for call in self._inputs.end(entry.choice)]
                return b"".join(left) + self._end_of_choice(entry, last)
            case TokenDelta() | PromptTokens() | Vectors():
                return b""
            case PrefillProgress() | Finished() | Failed():
                return self._of_request(entry)


class _CustomInputs:
    """The tool calls of one stream. For a custom tool, it sends the text input instead of JSON
    arguments."""

    def __init__(self, parsed: Parsed) -> None:
        self._parsed = parsed
        self._open: dict[tuple[int, int], InputText] = {}

    def delta(self, entry: ToolCallDelta) -> CallDelta | CustomCallDelta | None:
        """Return a fragment of a call as the client gets it; None if it completes no further text
        of a custom tool's input."""
        place = (entry.choice, entry.call)
        if entry.name and is_custom(self._parsed, entry.name):
            self._open[place] = text = InputText()
            custom: CustomDelta = {"name": entry.name, "input": text.add(entry.arguments)}
            delta: CustomCallDelta = {"index": entry.call, "type": "custom", "custom": custom}
            return {**delta, "id": entry.call_id or ""}
        if place not in self._open:
            return call_delta(entry)
        more = self._open[place].add(entry.arguments)
        return {"index": entry.call, "custom": {"input": more}} if more else None

    def end(self, choice: int) -> list[CustomCallDelta]:
        """Return the fragments of a choice's inputs that were held back."""
        left = [(place[1], text.end()) for place, text in self._open.items() if place[0] == choice]
        return [{"index": call, "custom": {"input": text}} for call, text in left if text]


def render_chat(parsed: Parsed, collected: Collected) -> bytes:
    """Return a `chat.completion` object as JSON."""
    wants_logprobs = parsed.requests[0].top_logprobs is not None
    choices = [
        _choice_object(parsed, index, choice, wants_logprobs=wants_logprobs)
        for index, choice in enumerate(collected.choices)
    ]
    return whole_answer(parsed, "chat.completion", choices, collected.usage)


def call_delta(entry: ToolCallDelta) -> CallDelta:
    """Return a fragment of a call; only the first has id and name."""
    if entry.call_id is None:
        return {"index": entry.call, "function": {"arguments": entry.arguments}}
    return {
        "index": entry.call,
        "id": entry.call_id,
        "type": "function",
        "function": {"name": entry.name or "", "arguments": entry.arguments},
    }


def logprobs_object(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return a text's log-probabilities in OpenAI's shape."""
    return {"content": logprobs_list(logprobs), "refusal": None}


def _finish_of(parsed: Parsed, reason: FinishReason) -> Mapping[str, str]:
    """Return the finish reason of a choice, in the deprecated form if calls use that."""
    older = reason == "tool_calls" and FUNCTION_CALL in parsed.tells
    return {"finish_reason": FUNCTION_CALL} if older else FINISHES[reason]


def _call_object(parsed: Parsed, call: CollectedCall) -> dict[str, Any]:
    if is_custom(parsed, call.name):
        custom = {"name": call.name, "input": input_of(call.arguments)}
        return {"id": call.call_id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _choice_object(
    parsed: Parsed, index: int, choice: CollectedChoice, *, wants_logprobs: bool
) -> dict[str, Any]:
    only_calls = bool(choice.calls) and not choice.text
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if only_calls else choice.text,
    }
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls and FUNCTION_CALL in parsed.tells:
        call = choice.calls[0]
        message["function_call"] = {"name": call.name, "arguments": call.arguments}
    elif choice.calls:
        message["tool_calls"] = [_call_object(parsed, call) for call in choice.calls]
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs_object(choice.logprobs) if wants_logprobs else None,
        **_finish_of(parsed, choice.finish_reason),
    }
