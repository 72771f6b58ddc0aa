"""Requests that are given back to their gateway, and those that come with an answer so far.

Pure. What goes on here is, for each token, what it would have been had it gone on where it began:
the prompt is that which was read there, and chance depends on seed and position alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bus.wire.errors import Refusal
from bus.wire.ids import TokenId
from bus.wire.messages.tokens import AnswerSoFar, Displaced, Suspended
from runner.engine import EngineFacts
from runner.schedule import RowEvent, RowFinished
from runner.serving.open_request import OpenRequest
from runner.text import PreparedRequest


def given_back(request: OpenRequest, ends: Iterable[RowEvent]) -> Displaced | Suspended:
    """Return what a gateway process is told of a request that it has again; `ends` are those of its
    rows."""
    if not request.has_begun:
        return Displaced(request.request_id)
    costs = {one.key.choice: one.cost for one in ends if isinstance(one, RowFinished)}
    return Suspended(request.request_id, request.so_far(costs))


def gone_on(
    prepared: PreparedRequest, so_far: AnswerSoFar | None, facts: EngineFacts
) -> PreparedRequest | Refusal:
    """Return a request that another runner has begun as that had read it, but with no more tokens
    than fit here; or why it cannot be gone on with."""
    if so_far is None:
        return prepared
    count, limit = len(so_far.prompt), facts.context_tokens
    most = min(so_far.max_tokens, limit - count)
    made = max((len(one.tokens) for one in so_far.choices), default=0)
    if made >= most:
        return Refusal(
            reason="context_length",
            message=f"{count} prompt tokens and {made} made elsewhere leave no room in {limit}",
            facts={"prompt_tokens": count, "limit_tokens": limit},
        )
    if len(so_far.choices) != len(prepared.choices):
        message = f"{len(so_far.choices)} of {len(prepared.choices)} choices were begun"
        return Refusal(reason="bad_request", message=message)
    return replace(prepared, tokens=tuple(map(TokenId, so_far.prompt)), max_tokens=most)
