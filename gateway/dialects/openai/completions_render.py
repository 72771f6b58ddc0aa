"""Renders completions: the stream of chunks, and the whole answer.

Pure. Choices are numbered across prompts: choice c of prompt p is p * n + c. An echoed prompt comes
first: text as it was sent, in a chunk of its own; token ids as the runner reads them. Its
log-probabilities precede the text's. The first is null, since that token is given, not predicted.
There is no reasoning channel: on a raw prompt, a model's thinking is part of its text.
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
    PromptTokens,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
    Vectors,
)
from gateway.dialects import sse
from gateway.dialects.collect import Collected, CollectedChoice, total
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import finite_logprob, json_bytes, text_bytes
from gateway.dialects.openai import shapes
from gateway.dialects.openai.shapes import OpenAIStream

OBJECT = "text_completion"
# a raw prompt has no tools: a call ends the text
FINISHES = {**shapes.FINISHES, "tool_calls": shapes.FINISHES["stop"]}
_DELTA_TAIL = b',"logprobs":null,"finish_reason":null}]}\n\n'
PART = "\ufffd"
"""The replacement character, which stands for a part of a character in a token's text."""


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
        self._echoes = {
            request.request_id: echo
            for request, echo in zip(parsed.requests, parsed.echoes, strict=False)
        }
        # a body that was passed on to a provider has no requests, and renders only errors
        self._wants_logprobs = any(request.top_logprobs is not None for request in parsed.requests)

    def open(self) -> bytes:
        """Return the echoed prompts. If no prompt is echoed, return a comment, so that the head of
        the response is sent now."""
        frames = [
            self._starts[request * self._parsed.choices + choice] + text_bytes(echo) + _DELTA_TAIL
            for request, echo in enumerate(self._parsed.echoes)
            if echo is not None
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

    def _with_logprobs(
        self, entry: TokenDelta | PromptTokens, index: int, *, text: str | None = None
    ) -> bytes:
        begins = isinstance(entry, PromptTokens) and entry.start == 0
        offset = self._offsets[index]
        shown, self._offsets[index] = logprobs_object(
            entry.logprobs, entry.text, offset, begins=begins
        )
        return b"".join(
            (
                self._starts[index],
                text_bytes(entry.text if text is None else text),
                b',"logprobs":',
                json_bytes(shown),
                b',"finish_reason":null}]}\n\n',
            )
        )

    def _prompt(self, entry: PromptTokens) -> bytes:
        """Return the frame (event) of the prompt's tokens. It also has their text, unless `open`
        has sent that."""
        index = self._first[entry.request_id] + entry.choice
        text = entry.text if self._echoes.get(entry.request_id) is None else ""
        if self._wants_logprobs:
            return self._with_logprobs(entry, index, text=text)
        return self._starts[index] + text_bytes(text) + _DELTA_TAIL if text else b""

    def _rare(self, entry: Entry) -> bytes:
        match entry:
            case PromptTokens():
                return self._prompt(entry)
            case ChoiceEnd():
                index = self._first[entry.request_id] + entry.choice
                finish = shapes.finish_bytes(FINISHES[entry.finish_reason])
                chunk = self._starts[index] + b'"","logprobs":null,%b}]' % finish
                return self._end_of_choice(entry, chunk)
            case TokenDelta() | ToolCallDelta() | Vectors():
                return b""
            case PrefillProgress() | Finished() | Failed():
                return self._of_request(entry)


def render_completions(parsed: Parsed, collected: Sequence[Collected]) -> bytes:
    """Return a `text_completion` object as JSON."""
    echoes: Sequence[str | None] = parsed.echoes or ("",) * len(collected)
    choices = [
        _choice_object(parsed, request * parsed.choices + index, choice, echo)
        for request, (whole, echo) in enumerate(zip(collected, echoes, strict=True))
        for index, choice in enumerate(whole.choices)
    ]
    usage = total([whole.usage for whole in collected])
    return shapes.whole_answer(parsed, OBJECT, choices, usage)


def logprobs_object(
    logprobs: Sequence[TokenLogprob], text: str, offset: int, *, begins: bool = False
) -> tuple[dict[str, Any], int]:
    """Return log-probabilities in the older shape, and the offset after these tokens.

    `text` is the tokens' joint text. `offset` counts the characters before them; a character of
    several tokens counts once. Each token's alternatives include the token itself. `begins`: the
    first token is the prompt's first, which has no log-probability.
    """
    offsets, offset = _text_offsets([logprob.text for logprob in logprobs], text, offset)
    numbers: list[float | None] = [finite_logprob(logprob.logprob) for logprob in logprobs]
    likeliest: list[dict[str, float] | None] = [_likeliest(logprob) for logprob in logprobs]
    if begins:
        numbers[0] = likeliest[0] = None
    shown = {
        "tokens": [logprob.text for logprob in logprobs],
        "token_logprobs": numbers,
        "top_logprobs": likeliest,
        "text_offset": offsets,
    }
    return shown, offset


def _text_offsets(tokens: Sequence[str], text: str, offset: int) -> tuple[list[int], int]:
    """Return the start of each token's text and the end of the last text. If a token has only part
    of a character, its own text is U+FFFD; `text`, the joint text of all tokens, shows where the
    character ends."""
    offsets: list[int] = []
    place = 0  # index in `text`
    is_within = False  # within a character of several tokens
    for token in tokens:
        if is_within and PART not in token:
            end = max(text.find(token, place), place)
            offset, place, is_within = offset + end - place, end, False
        offsets.append(offset)
        if PART in token:
            is_within = True
            token = token.partition(PART)[0]
        offset += len(token)
        place += len(token) if text.startswith(token, place) else 0
    return offsets, offset + (len(text) - place if is_within else 0)


def _likeliest(token: TokenLogprob) -> dict[str, float]:
    """Return the log-probabilities of the likeliest tokens and of the token itself, by text. If two
    tokens have the same text, the likelier one counts."""
    logprobs = {text: finite_logprob(logprob) for _, text, logprob in reversed(token.top)}
    logprobs.setdefault(token.text, finite_logprob(token.logprob))
    return logprobs


def _choice_object(
    parsed: Parsed, index: int, choice: CollectedChoice, echo: str | None
) -> dict[str, Any]:
    shown = None
    if parsed.requests[0].top_logprobs is not None:
        tokens = [*choice.prompt, *choice.logprobs]
        text = choice.prompt_text + choice.text
        shown, _ = logprobs_object(tokens, text, 0, begins=bool(choice.prompt))
    return {
        "index": index,
        "text": (choice.prompt_text if echo is None else echo) + choice.text,
        "logprobs": shown,
        **FINISHES[choice.finish_reason],
    }
