"""Talks to the running exchange: cuts a conversation that does not fit into its model's context.

The oldest turns are dropped first. A user's turn is dropped together with all turns up to the
user's next turn, so that a tool's result always follows its call. System prompts stay, and so does
everything from the user's last turn on. The gateway does not know how many tokens a turn has. It
estimates them from the turn's characters and from the token count of the whole prompt, which the
runner reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bus.wire.messages.requests import ChatMessage, ChatPrompt, GenerationRequest
from gateway.dialects.dialect import Parsed
from gateway.dialects.faults import HttpFault, HttpFaultRaised, overflow_of
from gateway.exchange.flow import Flow
from gateway.exchange.parts import Parts

SHARE_OF_ANSWER = 4
"""If the request sets no `max_tokens`, the context divided by this number is reserved for the
answer."""


async def cut(_parts: Parts, flow: Flow) -> Flow:
    """Replace a conversation that is too long with a shorter one. If that is impossible, raise
    HttpFaultRaised with the fault. If a stream has begun, only clear the fault: the stream renders
    it."""
    fault, running = flow.fault, flow.running
    assert fault is not None and running is not None
    shorter = shortened(flow.parsed, fault)
    if shorter is not None:
        running.give_way()
        return replace(flow, parsed=shorter, running=None, fault=None)
    if not flow.is_streamed:
        raise HttpFaultRaised(fault)
    return replace(flow, fault=None)


def shortened(parsed: Parsed, fault: HttpFault) -> Parsed | None:
    """Return a copy of a body with fewer turns, after a runner reported that its prompt was too
    long (`fault`). None if the client does not allow this, if `fault` is another error, or if no
    more turns can be dropped."""
    overflow = overflow_of(fault)
    if not parsed.cuts or overflow is None:
        return None
    prompt_tokens, limit_tokens = overflow
    shorter = [_cut(request, prompt_tokens, limit_tokens) for request in parsed.requests]
    requests = tuple(request for request in shorter if request is not None)
    return replace(parsed, requests=requests) if len(requests) == len(shorter) else None


def _cut(
    request: GenerationRequest, prompt_tokens: int, limit_tokens: int
) -> GenerationRequest | None:
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        return None
    answer_tokens = min(request.max_tokens or limit_tokens // SHARE_OF_ANSWER, limit_tokens // 2)
    share = (limit_tokens - answer_tokens) / prompt_tokens
    messages = _without_oldest(prompt.messages, share)
    if messages is None:
        return None
    return request.model_copy(update={"prompt": prompt.model_copy(update={"messages": messages})})


def _without_oldest(turns: Sequence[ChatMessage], share: float) -> tuple[ChatMessage, ...] | None:
    """Return the turns without the oldest ones, so that at most `share` (0 to 1) of the characters
    is left. If that is impossible, return everything from the user's last turn on. None if the user
    has only one turn."""
    begins = [place for place, turn in enumerate(turns) if turn.role == "user"]
    whole = sum(map(_weight, turns))
    remaining: tuple[ChatMessage, ...] | None = None
    for begin in begins[1:]:
        system = [turn for turn in turns[:begin] if turn.role == "system"]
        remaining = (*system, *turns[begin:])
        if sum(map(_weight, remaining)) <= share * whole:
            break
    return remaining


def _weight(turn: ChatMessage) -> int:
    text_chars = sum(len(part.text) for part in turn.parts if part.kind == "text")
    call_chars = sum(len(call.name) + len(call.arguments) for call in turn.tool_calls)
    return 8 + text_chars + call_chars + len(turn.reasoning or "")
