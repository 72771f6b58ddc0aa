"""Conversations made to fit: what is dropped of one that is longer than its model reads.

Pure. The oldest turns go, whole exchanges at a time, so that an answer of a tool never stands
without its call; system prompts and all from the last user's turn on stay. How many tokens a turn
has is not known here: turns are weighed by their characters, against what the runner counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bus.wire.messages.requests import ChatMessage, ChatPrompt, GenerationRequest
from gateway.dialects.dialect import Parsed
from gateway.dialects.faults import HttpFault, overflow_of

SHARE_OF_ANSWER = 4
"""Of the context one part in so many is left to the answer, where its length is not said."""


def shortened(parsed: Parsed, fault: HttpFault) -> Parsed | None:
    """Return a body that may be cut with fewer turns, after its prompt was too long; None where it
    may not be cut, failed otherwise, or has nothing more to drop."""
    overflow = overflow_of(fault)
    if not parsed.cuts or overflow is None:
        return None
    prompt_tokens, limit_tokens = overflow
    made = [_cut(request, prompt_tokens, limit_tokens) for request in parsed.requests]
    requests = tuple(one for one in made if one is not None)
    return replace(parsed, requests=requests) if len(requests) == len(made) else None


def _cut(
    request: GenerationRequest, prompt_tokens: int, limit_tokens: int
) -> GenerationRequest | None:
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        return None
    answer_tokens = min(request.max_tokens or limit_tokens // SHARE_OF_ANSWER, limit_tokens // 2)
    share = (limit_tokens - answer_tokens) / prompt_tokens
    kept = _kept(prompt.messages, share)
    if kept is None:
        return None
    return request.model_copy(update={"prompt": prompt.model_copy(update={"messages": kept})})


def _kept(turns: Sequence[ChatMessage], share: float) -> tuple[ChatMessage, ...] | None:
    """Return the turns without the oldest, so that at most a `share` of their characters is left;
    None where no user's turn has another before it."""
    begins = [place for place, turn in enumerate(turns) if turn.role == "user"]
    whole = sum(map(_weight, turns))
    found: tuple[ChatMessage, ...] | None = None
    for begin in begins[1:]:
        system = [turn for turn in turns[:begin] if turn.role == "system"]
        found = (*system, *turns[begin:])
        if sum(map(_weight, found)) <= share * whole:
            break
    return found


def _weight(turn: ChatMessage) -> int:
    said = sum(len(part.text) for part in turn.parts if part.kind == "text")
    called = sum(len(call.name) + len(call.arguments) for call in turn.tool_calls)
    return 8 + said + called + len(turn.reasoning or "")
