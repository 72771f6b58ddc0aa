"""Completions rendered: the stream of chunks, and the whole answer.

Pure. The choices of several prompts are numbered through: choice c of prompt p is p * n + c.
An echoed prompt comes first, in a chunk of its own. There is no channel for reasoning here:
what a model thinks on a raw prompt is part of its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bus.wire.messages.tokens import (
    ChoiceEnd,
    Entry,
    Failed,
    Finished,
    PrefillProgress,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
)
from gateway.dialects import sse
from gateway.dialects.collect import Collected, CollectedChoice, total
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import finite_logprob, json_bytes, text_bytes
from gateway.dialects.openai import shapes
from gateway.dialects.openai.stream import OpenAIStream

OBJECT = "text_completion"
# a raw prompt has no tools: a model that wrote a call has come to its end
FINISHES = {**shapes.FINISHES, "tool_calls": shapes.FINISHES["stop"]}
_DELTA_TAIL = b',"logprobs":null,"finish_reason":null}]}\n\n'


class CompletionsStream(OpenAIStream):
    """The stream of the answer to one or more prompts."""

    def __init__(self, parsed: Parsed) -> None:
        super().__init__(parsed, OBJECT)
        self._first = {
            request.request_id: index * parsed.choices
            for index, request in enumerate(parsed.requests)
        }
        start = self._start()
        count = len(parsed.requests) * parsed.choices
        self._starts = [
            start + b',"choices":[{"index":%d,"text":' % index for index in range(count)
        ]
        self._offsets = [0] * count

    def open(self) -> bytes:
        """Return the echoed prompts; a comment when there are none, so that the head leaves now."""
        frames = [
            self._starts[request * self._parsed.choices + choice] + text_bytes(echo) + _DELTA_TAIL
            for request, echo in enumerate(self._parsed.echoes)
            for choice in range(self._parsed.choices)
        ]
        return b"".join(frames) or sse.comment("ok")

    def render(self, entries: Sequence[Entry]) -> bytes:
        """Return the frames of these entries; nothing once the stream has ended."""
        out: list[bytes] = []
        starts, first = self._starts, self._first
        for entry in entries:
            if self._closed:
                break
            if type(entry) is TokenDelta:
                index = first[entry.request_id] + entry.choice
                if entry.logprobs:
                    out.append(self._with_logprobs(entry, index))
                elif entry.text:
                    out += (starts[index], text_bytes(entry.text), _DELTA_TAIL)
            else:
                out.append(self._rare(entry))
        return b"".join(out)

    def _with_logprobs(self, entry: TokenDelta, index: int) -> bytes:
        shown, self._offsets[index] = logprobs_object(entry.logprobs, self._offsets[index])
        return b"".join(
            (
                self._starts[index],
                text_bytes(entry.text),
                b',"logprobs":',
                json_bytes(shown),
                b',"finish_reason":null}]}\n\n',
            )
        )

    def _rare(self, entry: Entry) -> bytes:
        match entry:
            case ChoiceEnd():
                index = self._first[entry.request_id] + entry.choice
                finish = shapes.finish_bytes(FINISHES[entry.finish_reason])
                return self._starts[index] + b'"","logprobs":null,%b}]}\n\n' % finish
            case TokenDelta() | ToolCallDelta():
                return b""
            case PrefillProgress() | Finished() | Failed():
                return self._of_request(entry)


def render_completions(parsed: Parsed, collected: Sequence[Collected]) -> bytes:
    """Return one `text_completion`."""
    echoes = parsed.echoes or ("",) * len(collected)
    choices = [
        _choice_object(parsed, request * parsed.choices + index, choice, echo)
        for request, (one, echo) in enumerate(zip(collected, echoes, strict=True))
        for index, choice in enumerate(one.choices)
    ]
    return shapes.whole_answer(parsed, OBJECT, choices, total([one.usage for one in collected]))


def logprobs_object(logprobs: Sequence[TokenLogprob], offset: int) -> tuple[dict[str, Any], int]:
    """Return the older shape of log-probabilities, and the offset after these tokens.

    `offset` counts the characters of the token texts before these.
    """
    offsets: list[int] = []
    for one in logprobs:
        offsets.append(offset)
        offset += len(one.text)
    shown = {
        "tokens": [one.text for one in logprobs],
        "token_logprobs": [finite_logprob(one.logprob) for one in logprobs],
        "top_logprobs": [
            {text: finite_logprob(logprob) for _, text, logprob in reversed(one.top)}
            for one in logprobs
        ],
        "text_offset": offsets,
    }
    return shown, offset


def _choice_object(
    parsed: Parsed, index: int, choice: CollectedChoice, echo: str
) -> dict[str, Any]:
    wants_logprobs = parsed.requests[0].top_logprobs is not None
    return {
        "index": index,
        "text": echo + choice.text,
        "logprobs": logprobs_object(choice.logprobs, 0)[0] if wants_logprobs else None,
        **FINISHES[choice.finish_reason],
    }
