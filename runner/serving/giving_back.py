"""Requests handed back to their gateway, and requests resumed from another runner.

Pure. A resumed request gets the same tokens that the first runner would have made, because the
prompt is the same and sampling depends only on seed and position.
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
    """Return the message that returns a request to its gateway. `ends` are the ends of its rows."""
    if not request.has_begun:
        return Displaced(request.request_id)
    costs = {end.key.choice: end.cost for end in ends if isinstance(end, RowFinished)}
    return Suspended(request.request_id, request.so_far(costs))


def resume_request(
    prepared: PreparedRequest, so_far: AnswerSoFar | None, facts: EngineFacts
) -> PreparedRequest | Refusal:
    """Return a request resumed from another runner's output, limited to the tokens that fit here;
    or why it cannot be resumed."""
    if so_far is None:
        return prepared
    count, limit = len(so_far.prompt), facts.context_tokens
    most = min(so_far.max_tokens, limit - count)
    made = max((len(choice.tokens) for choice in so_far.choices), default=0)
    if made >= most:
        return Refusal(
            reason="context_length",
            message=(
                f"{count} prompt tokens and {made} generated elsewhere exceed the context "
                f"of {limit}"
            ),
            facts={"prompt_tokens": count, "limit_tokens": limit},
        )
    if len(so_far.choices) != len(prepared.choices):
        message = f"{len(so_far.choices)} of {len(prepared.choices)} choices were started elsewhere"
        return Refusal(reason="bad_request", message=message)
    return replace(prepared, tokens=tuple(map(TokenId, so_far.prompt)), max_tokens=most)
