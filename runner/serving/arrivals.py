"""Whether a request that has arrived is refused before any work is done for it.

Pure. A refused request costs nothing, because its text has not been tokenised yet.
"""

from __future__ import annotations

from collections.abc import Collection, Container

from bus.wire.errors import Refusal
from bus.wire.ids import RequestId
from bus.wire.instances import Phase
from bus.wire.messages.control import RunnerSpec
from bus.wire.messages.tokens import Submit
from bus.wire.shares import has_share
from runner.serving.open_request import OpenRequest

PREPARING_CHARS = 64 << 20
"""Limit of the characters of text that wait to be tokenised. Above it, a request is refused if
other text of the same sharer is already waiting."""


def not_served(spec: RunnerSpec, phase: Phase, submit: Submit) -> Refusal | None:
    """Return why a runner in this phase refuses a request; None if it does not. It refuses other
    models, and requests that were sent to another generation (load attempt) of the instance."""
    if phase == "draining":
        return Refusal(reason="draining", message=f"{spec.model} is being unloaded on this node")
    if phase != "ready":
        return Refusal(reason="not_ready", message=f"{spec.model} is {phase} on this node")
    if submit.generation != spec.generation:
        return Refusal(
            reason="wrong_generation",
            message=f"this runner serves generation (load attempt) {spec.generation} of the "
            f"instance, not {submit.generation}",
        )
    if submit.request.model != spec.model:
        return Refusal(reason="unknown_model", message=f"this runner serves {spec.model}")
    return None


def known_already(request_id: RequestId, *groups: Container[RequestId]) -> Refusal | None:
    """Return why a request id cannot be reused; None if it is new."""
    if any(request_id in group for group in groups):
        return Refusal(reason="conflict", message=f"request {request_id} already exists")
    return None


def too_long(coming: OpenRequest, opened: Collection[OpenRequest]) -> Refusal | None:
    """Return why a text is refused while other texts wait to be tokenised, because all together are
    too long; None if it fits."""
    waiting = [request for request in opened if request.size]
    chars = sum(request.size for request in waiting) + coming.size
    if chars <= PREPARING_CHARS or all(request.sharer != coming.sharer for request in waiting):
        return None
    message = f"{len(waiting)} long prompts are already waiting to be tokenised; retry later"
    return Refusal(reason="queue_full", message=message, position=len(waiting))


def too_many(coming: OpenRequest, opened: Collection[OpenRequest], most: int) -> Refusal | None:
    """Return why one more request is refused if `most` requests are open; None if it is accepted. A
    request of a sharer that has fewer than its fair share of open requests is always accepted."""
    sharers = [request.sharer for request in opened]
    if len(opened) < most or has_share(sharers, coming.sharer, most):
        return None
    message = f"{len(opened)} requests are already waiting; the limit is {most}"
    return Refusal(reason="queue_full", message=message, position=len(opened))
