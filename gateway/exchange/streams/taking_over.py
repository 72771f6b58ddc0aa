"""Gives a request the part of its answer that an earlier HTTP process received.

Pure: time arrives as `now`. The entries reach the request as if a runner had sent them, but their
tokens are not counted again. A runner then continues the answer from these tokens.
"""

from __future__ import annotations

from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import ChoiceEnd, Failed, Finished, TokenDelta, ToolCallDelta
from gateway.exchange.streams.stream_records import EarlierAnswer
from gateway.requests.request import ClientRequest

CANNOT = (
    "the gateway process that served this stream ended, and the answer cannot continue, because "
    "its runner reports no tokens or x_resume is false"
)


def begin_with(request: ClientRequest, earlier: EarlierAnswer, now: float) -> bool:
    """Let a request begin with an earlier answer. Return True if a runner must continue it. Return
    False if the answer is complete, or cannot continue and ends with an error."""
    resuming, inbox, entries = request.resuming, request.inbox, [*earlier.entries]
    resuming.moved(earlier.moves)
    request.prompt_tokens = earlier.prompt_tokens
    if earlier.begun is not None:
        resuming.began(earlier.begun, now)
    if earlier.prompt_tokens:
        inbox.accepted(request.request_id)
    last = entries.pop() if entries and isinstance(entries[-1], Finished | Failed) else None
    for entry in entries:
        if isinstance(entry, TokenDelta | ToolCallDelta):
            request.tokens += entry.tokens
            if resuming.record is not None and not resuming.record.add(entry):
                resuming.drop()
        elif isinstance(entry, ChoiceEnd):
            request.finishes.add(entry.finish_reason)
            resuming.over.add(entry.choice)
    if entries:
        inbox.arrived(request.request_id, entries)
    if entries and last is None and resuming.record is None:
        usage = Usage(prompt_tokens=request.prompt_tokens, completion_tokens=request.tokens)
        last = Failed(request.request_id, 0, "runner_lost", CANNOT, usage, {})
    if last is not None:
        request.arrived([last], now)
        return False
    if resuming.record is not None:
        request.so_far = resuming.so_far(logprobs=request.wire.top_logprobs is not None)
        request.was_displaced, request.queued_at = True, now
        inbox.suspended(request.request_id)
    return True
