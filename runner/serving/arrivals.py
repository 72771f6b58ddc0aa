"""Requests that have arrived and are not yet in the scheduler: which are refused, and who sent
them.

Pure. A refused request costs nothing, because its text has not been tokenised yet.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass

from bus.wire.errors import Refusal
from bus.wire.ids import RequestId
from bus.wire.messages.control import Phase, RunnerSpec
from bus.wire.messages.tokens import Cancel, Submit
from bus.wire.shares import Sharer
from runner.engine import EngineFacts
from runner.schedule import Arrival

UNNAMED: Sharer = ("",)
"""The requester of all requests whose gateway names none."""
PREPARING_CHARS = 64 << 20
"""Characters of text that wait to be tokenised. Above this limit, a requester whose text is already
waiting is refused."""


@dataclass(slots=True)
class Pending:
    """A submit that is being tokenised, of `size` characters or token ids. `cancelled` says why it
    was cancelled. `returns`: its gateway accepts the request back as long as it has not begun.
    """

    peer: bytes
    submit: Submit
    deadline_at: float
    since_at: float
    returns: bool
    sharer: Sharer
    size: int
    cancelled: Cancel | None = None

    def arrival(self) -> Arrival:
        """Return this request in the form that the scheduler uses to compare arrivals."""
        request = self.submit.request
        return Arrival(
            request.request_id, self.sharer, request.priority, self.since_at, self.returns
        )


def arrived(peer: bytes, submit: Submit, size: int, now: float, *, returns: bool) -> Pending:
    """Return a pending submit that arrived now; its waiting time elsewhere counts."""
    return Pending(
        peer,
        submit,
        deadline_at=now + submit.remaining_ms / 1000,
        since_at=now - submit.waited_ms / 1000,
        returns=returns,
        sharer=submit.sharer or UNNAMED,
        size=size,
    )


def not_served(spec: RunnerSpec, phase: Phase, submit: Submit) -> Refusal | None:
    """Return why a runner in this phase does not serve this model and generation; None if it
    does."""
    if phase == "draining":
        return Refusal(reason="draining", message=f"{spec.model} is being unloaded on this node")
    if phase != "ready":
        return Refusal(reason="not_ready", message=f"{spec.model} is {phase} on this node")
    if submit.generation != spec.generation:
        return Refusal(
            reason="wrong_generation",
            message=f"this runner has generation {spec.generation}, not {submit.generation}",
        )
    if submit.request.model != spec.model:
        return Refusal(reason="unknown_model", message=f"this runner serves {spec.model}")
    return None


def cannot_take(
    spec: RunnerSpec, phase: Phase, facts: EngineFacts | None, submit: Submit
) -> Refusal | None:
    """Return why a runner in this phase refuses the request; None if it accepts it."""
    refusal, request = not_served(spec, phase, submit), submit.request
    if refusal is not None:
        return refusal
    if request.adapter and facts and (why := facts.why_no_adapter(request.adapter)):
        return Refusal(reason="unsupported", message=f"{spec.model} {why}", field="model")
    return None


def known_already(request_id: RequestId, *groups: Container[RequestId]) -> Refusal | None:
    """Return why a request id cannot be reused; None if it is new."""
    if any(request_id in group for group in groups):
        return Refusal(reason="conflict", message=f"request {request_id} already exists")
    return None


def too_long(coming: Pending, preparing: Collection[Pending]) -> Refusal | None:
    """Return why a text is refused while other texts are being tokenised, because all together are
    too long; None if it fits."""
    chars = sum(pending.size for pending in preparing) + coming.size
    if chars <= PREPARING_CHARS or all(pending.sharer != coming.sharer for pending in preparing):
        return None
    message = f"{len(preparing)} long prompts are already waiting to be tokenised; retry later"
    return Refusal(reason="queue_full", message=message, position=len(preparing))
