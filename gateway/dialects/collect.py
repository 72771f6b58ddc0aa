"""Entries folded into whole answers, for clients that do not stream.

Pure. Holds the same entries that a stream would have rendered, in the order they came, so
that the two can only say the same. Entries of requests it was not told of are refused.
A prompt that is no conversation has no channel for reasoning: all that comes is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.wire.errors import FinishReason
from bus.wire.ids import RequestId
from bus.wire.messages.requests import GenerationRequest, Usage
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


@dataclass(slots=True)
class CollectedCall:
    """One tool call; `arguments` is JSON text, unless the choice ran out of length."""

    call_id: str = ""
    name: str = ""
    arguments: str = ""

    def add(self, delta: ToolCallDelta) -> None:
        """Add a part of the call: id and name come once, arguments in fragments."""
        self.call_id = self.call_id or delta.call_id or ""
        self.name = self.name or delta.name or ""
        self.arguments += delta.arguments


@dataclass(slots=True)
class CollectedChoice:
    """One choice. `logprobs` are those of the text, not of the reasoning; `prompt` and
    `prompt_text` are the prompt's, where it was asked about."""

    text: str = ""
    reasoning: str = ""
    calls: list[CollectedCall] = field(default_factory=list[CollectedCall])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prompt: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prompt_text: str = ""
    finish_reason: FinishReason = "stop"
    stop: str | None = None


@dataclass(slots=True)
class Collected:
    """One request, whole. `failed` is set when it ended early, `prompt` where there was a question
    about its prompt. `vectors` are those of its inputs, `cut` the numbers of those of which only a
    part was read."""

    request_id: RequestId
    choices: list[CollectedChoice]
    usage: Usage = field(default_factory=Usage)
    failed: Failed | None = None
    prompt: PromptAnswer | None = None
    vectors: list[bytes] = field(default_factory=list[bytes])
    cut: list[int] = field(default_factory=list[int])


class Collector:
    """Folds the entries of some requests. Done when each has had its terminal."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self._open = {
            request.request_id: Collected(
                request.request_id, [CollectedChoice() for _ in range(request.n)]
            )
            for request in requests
        }
        self._all = tuple(self._open.values())
        self._raw = {one.request_id for one in requests if one.prompt.kind != "chat"}
        self._pieces: dict[tuple[RequestId, int, str], list[str]] = {}

    @property
    def ended(self) -> bool:
        """Return whether every request has ended, well or not."""
        return not self._open

    @property
    def collected(self) -> tuple[Collected, ...]:
        """Return what came, in the order of the requests; complete once `ended`."""
        for (request_id, choice, channel), pieces in self._pieces.items():
            for one in self._all:
                if one.request_id == request_id:
                    setattr(one.choices[choice], channel, "".join(pieces))
        return self._all

    @property
    def failed(self) -> Failed | None:
        """Return the failure of the first request that failed, or None."""
        return next((one.failed for one in self._all if one.failed is not None), None)

    def add(self, entries: Sequence[Entry]) -> None:
        """Fold these in. KeyError for a request that has ended or was never ours."""
        for entry in entries:
            whole = self._open[entry.request_id]
            match entry:
                case TokenDelta():
                    channel = "text" if entry.request_id in self._raw else entry.channel
                    key = (entry.request_id, entry.choice, channel)
                    self._pieces.setdefault(key, []).append(entry.text)
                    if entry.logprobs and channel == "text":
                        whole.choices[entry.choice].logprobs.extend(entry.logprobs)
                case PromptTokens():
                    key = (entry.request_id, entry.choice, "prompt_text")
                    self._pieces.setdefault(key, []).append(entry.text)
                    whole.choices[entry.choice].prompt.extend(entry.logprobs)
                case ToolCallDelta():
                    calls = whole.choices[entry.choice].calls
                    calls += (CollectedCall() for _ in range(len(calls), entry.call + 1))
                    calls[entry.call].add(entry)
                case Vectors():
                    whole.vectors += entry.vectors
                    whole.cut += entry.cut
                case ChoiceEnd():
                    whole.choices[entry.choice].finish_reason = entry.finish_reason
                    whole.choices[entry.choice].stop = entry.stop
                case PrefillProgress():
                    pass
                case Finished() | Failed():
                    whole.usage = entry.usage
                    if isinstance(entry, Failed):
                        whole.failed = entry
                    else:
                        whole.prompt = entry.prompt
                    del self._open[entry.request_id]


def total(usages: Sequence[Usage]) -> Usage:
    """Return the usage of several requests together: counts added, the longest seconds."""
    if len(usages) == 1:
        return usages[0]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        queue_s=max((usage.queue_s for usage in usages), default=0.0),
        prefill_s=max((usage.prefill_s for usage in usages), default=0.0),
        decode_s=max((usage.decode_s for usage in usages), default=0.0),
    )
