"""Collects the entries that runners send into whole answers, for clients that do not stream.

Pure. A collector takes the same entries that a stream renders, in order of arrival, so the whole
answer agrees with the streamed one. It refuses entries of unknown requests. A raw prompt has no
reasoning channel: all its output is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.wire.errors import FinishReason
from bus.wire.ids import RequestId
from bus.wire.messages.requests import (
    DRAFT_COUNTS,
    GenerationRequest,
    Usage,
    sum_drafters,
)
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
from bus.wire.proposals import sum_proposals


@dataclass(slots=True)
class CollectedCall:
    """One tool call; `arguments` is JSON text, incomplete if the choice reached its length
    limit."""

    call_id: str = ""
    name: str = ""
    arguments: str = ""

    def add(self, delta: ToolCallDelta) -> None:
        """Add a part of the call. The id and the name come only in the first part, the arguments in
        fragments."""
        self.call_id = self.call_id or delta.call_id or ""
        self.name = self.name or delta.name or ""
        self.arguments += delta.arguments


@dataclass(slots=True)
class CollectedChoice:
    """One choice. `logprobs` belong to the text, not to the reasoning. `prompt` and `prompt_text`
    describe the prompt if the request asked for it."""

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
    """The answer to one complete request. `failed` is set if the request ended with an error,
    `prompt` if the request asked about its prompt. `vectors` has one vector for each input; `cut`
    has the numbers of the inputs that were truncated."""

    request_id: RequestId
    choices: list[CollectedChoice]
    usage: Usage = field(default_factory=Usage)
    failed: Failed | None = None
    prompt: PromptAnswer | None = None
    vectors: list[bytes] = field(default_factory=list[bytes])
    cut: list[int] = field(default_factory=list[int])


class Collector:
    """Collects the entries of several requests, until each of them has ended."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self._open = {
            request.request_id: Collected(
                request.request_id, [CollectedChoice() for _ in range(request.n)]
            )
            for request in requests
        }
        self._all = tuple(self._open.values())
        self._raw = {item.request_id for item in requests if item.prompt.kind != "chat"}
        self._pieces: dict[tuple[RequestId, int, str], list[str]] = {}

    @property
    def ended(self) -> bool:
        """Return whether every request has ended, successfully or not."""
        return not self._open

    @property
    def collected(self) -> tuple[Collected, ...]:
        """Return the answers in the order of the requests; complete once `ended`."""
        for (request_id, choice, channel), pieces in self._pieces.items():
            for request in self._all:
                if request.request_id == request_id:
                    setattr(request.choices[choice], channel, "".join(pieces))
        return self._all

    @property
    def failed(self) -> Failed | None:
        """Return the failure of the first request that failed, or None."""
        return next((request.failed for request in self._all if request.failed is not None), None)

    def add(self, entries: Sequence[Entry]) -> None:
        """Add these entries to the answers of their requests. Raises KeyError for an ended or
        unknown request."""
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
    """Return the usage of several requests together: the sums of counts and the longest times."""
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
        paused_s=max((usage.paused_s for usage in usages), default=0.0),
        resumes=sum(usage.resumes for usage in usages),
        drafters=sum_drafters(usage.drafters for usage in usages),
        proposals=sum_proposals(usage.proposals for usage in usages),
        **{name: sum(getattr(usage, name) for usage in usages) for name in DRAFT_COUNTS},
    )
