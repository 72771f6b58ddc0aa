"""One candidate of a task that is asked: by when it has to begin, and what lets the next be asked.

Pure. Once its first token is there no other candidate can answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.dialects.faults import HttpFault

OF_THE_MODEL = frozenset(
    {"model_not_found", "unsupported", "context_length_exceeded", "provider_refused"}
)
"""Codes below 500 that are about the model which was asked, and not about the request."""
OF_THIS_GATEWAY = frozenset({"draining", "overloaded", "client_cooldown", "client_queue_full"})
"""Codes that any other candidate would end with as well."""


@dataclass(slots=True)
class Attempt:
    """What a candidate has to keep to. `budget_s` None: none is set. `began`: its first token is
    there."""

    task: str
    budget_s: float | None
    began: bool = False

    def too_late(self, candidate: str, progress: str) -> HttpFault:
        """Return the fault of a candidate that did not begin in time; `progress` says how far it
        was, empty for not known."""
        told = f" ({progress})" if progress else ""
        return HttpFault(
            504,
            "deadline_exceeded",
            f"{candidate} did not start its answer within {self.budget_s:g} s, the budget "
            "of the task "
            f"'{self.task}' (budget_s), which includes loading{told}",
            retry_after_s=5.0,
        )


def leads_on(fault: HttpFault) -> bool:
    """Return whether another candidate may do better after this fault."""
    if fault.code in OF_THIS_GATEWAY:
        return False
    return fault.status == 429 or fault.status >= 500 or fault.code in OF_THE_MODEL
