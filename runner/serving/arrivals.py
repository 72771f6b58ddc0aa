"""Requests on their way to the scheduler: what is refused at the door, and who they count for.

Pure. A request that is refused here costs nothing: its text has not been looked at.
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
"""All those together whose gateway does not say who they are."""
PREPARING_CHARS = 64 << 20
"""Text that waits to be tokenised; beyond it who has some there already is refused more."""


@dataclass(slots=True)
class Pending:
    """A submit that is being prepared, of `size` characters or token ids. `cancelled` tells why
    it is not wanted any more; `returns`: its gateway takes it back before it has begun."""

    peer: bytes
    submit: Submit
    deadline_at: float
    since_at: float
    returns: bool
    sharer: Sharer
    size: int
    cancelled: Cancel | None = None

    def arrival(self) -> Arrival:
        """Return what the scheduler has to know of it."""
        request = self.submit.request
        return Arrival(
            request.request_id, self.sharer, request.priority, self.since_at, self.returns
        )


def arrived(peer: bytes, submit: Submit, size: int, now: float, *, returns: bool) -> Pending:
    """Return a submit of that size that came just now; how long it waited elsewhere counts."""
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
    """Return why a runner in this phase serves no request of that model and generation; None where
    it does."""
    if phase == "draining":
        return Refusal(reason="draining", message=f"{spec.model} is being unloaded here")
    if phase != "ready":
        return Refusal(reason="not_ready", message=f"{spec.model} is {phase} here")
    if submit.generation != spec.generation:
        return Refusal(
            reason="wrong_generation",
            message=f"this is generation {spec.generation}, not {submit.generation}",
        )
    if submit.request.model != spec.model:
        return Refusal(reason="unknown_model", message=f"{spec.model} is served here")
    return None


def cannot_take(
    spec: RunnerSpec, phase: Phase, facts: EngineFacts | None, submit: Submit
) -> Refusal | None:
    """Return why a runner in this phase takes no such request; None where it does."""
    refusal, request = not_served(spec, phase, submit), submit.request
    if refusal is not None:
        return refusal
    if request.adapter and facts and (why := facts.why_no_adapter(request.adapter)):
        return Refusal(reason="unsupported", message=f"{spec.model} {why}", field="model")
    return None


def known_already(request_id: RequestId, *known: Container[RequestId]) -> Refusal | None:
    """Return why a request cannot be submitted once more; None where it is in none of these."""
    if any(request_id in one for one in known):
        return Refusal(reason="conflict", message=f"request {request_id} is known already")
    return None


def too_long(coming: Pending, preparing: Collection[Pending]) -> Refusal | None:
    """Return why a text has no room beside those that are being prepared; None where it has."""
    chars = sum(one.size for one in preparing) + coming.size
    if chars <= PREPARING_CHARS or all(one.sharer != coming.sharer for one in preparing):
        return None
    message = f"{len(preparing)} long prompts are waiting to be read already"
    return Refusal(reason="queue_full", message=message, position=len(preparing))
