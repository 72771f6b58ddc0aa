"""The attempt to answer a request by one candidate of a task: its time limit, and the faults after
which the next candidate is tried. Pure. Once a candidate has sent its first token, no other
candidate is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.dialects.faults import HttpFault

OF_THE_MODEL = frozenset(
    {"model_not_found", "unsupported", "context_length_exceeded", "provider_refused"}
)
"""Error codes with a status below 500 that are the fault of the model and not of the request."""
OF_THIS_GATEWAY = frozenset({"draining", "overloaded", "client_cooldown", "client_queue_full"})
"""Error codes that every other candidate would cause as well."""
OF_WAITING = frozenset({"queue_full", "no_capacity", "model_loading"})
"""Error codes that say that the request would have to wait."""


@dataclass(slots=True)
class Attempt:
    """The limits of one candidate. `budget_s` is the time until the first token; None for no limit.
    `waited_s` of it has passed. `began` is true once the first token has come."""

    task: str
    budget_s: float | None
    began: bool = False
    waited_s: float = 0.0

    @property
    def left_s(self) -> float | None:
        """Return the rest of the budget; None for no limit."""
        return None if self.budget_s is None else max(0.0, self.budget_s - self.waited_s)

    def too_late(self, candidate: str, progress: str) -> HttpFault:
        """Return the fault of a candidate that sent no token in time. `progress` is its last
        progress message, or ""."""
        detail = f" ({progress})" if progress else ""
        return HttpFault(
            504,
            "deadline_exceeded",
            f"{candidate} did not start its answer within {self.budget_s:g} s, the budget "
            "of the task "
            f"'{self.task}' (budget_s), which includes loading{detail}",
            retry_after_s=5.0,
        )


def leads_on(fault: HttpFault) -> bool:
    """Return whether another candidate could succeed after this fault."""
    if fault.code in OF_THIS_GATEWAY:
        return False
    return fault.status == 429 or fault.status >= 500 or fault.code in OF_THE_MODEL
