"""One attempt of a task's candidate: when it must begin, and which faults pass on to the next.

Pure. After its first token no other candidate can answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.dialects.faults import HttpFault

OF_THE_MODEL = frozenset(
    {"model_not_found", "unsupported", "context_length_exceeded", "provider_refused"}
)
"""Codes below 500 that blame the model and not the request."""
OF_THIS_GATEWAY = frozenset({"draining", "overloaded", "client_cooldown", "client_queue_full"})
"""Codes that every other candidate would get as well."""


@dataclass(slots=True)
class Attempt:
    """A candidate's limits. `budget_s`: None for no limit. `began`: its first token came."""

    task: str
    budget_s: float | None
    began: bool = False

    def too_late(self, candidate: str, progress: str) -> HttpFault:
        """Return the fault of a candidate that did not begin in time; `progress`: how far it was,
        or ""."""
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
    """Return whether another candidate may succeed after this fault."""
    if fault.code in OF_THIS_GATEWAY:
        return False
    return fault.status == 429 or fault.status >= 500 or fault.code in OF_THE_MODEL
