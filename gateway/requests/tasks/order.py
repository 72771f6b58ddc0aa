"""The order in which a task's candidates are asked, and why the first is first.

Pure. The order is that of `tasks.toml`, except that a loaded model goes before a primary that is
not loaded, unless the primary is pinned. A provider's model is never moved forward for being
available: it is asked as the primary, or after those before it failed. If fallback to providers is
not allowed they are left out, except a primary, which the operator chose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bus.wire.tasks import ProviderModel, TaskTable

PRIMARY = "primary"


@dataclass(frozen=True, slots=True)
class CandidateChoice:
    """A candidate that may be asked, and why it has its place. `provided` is None for a model of
    the cluster."""

    candidate: str
    why: str
    provided: ProviderModel | None = None


@dataclass(frozen=True, slots=True)
class CandidateOrder:
    """The candidates to ask one after the other until one answers, and those left out."""

    choices: tuple[CandidateChoice, ...]
    left_out: tuple[str, ...] = ()


def order_of(
    table: TaskTable, name: str, *, is_warm: Callable[[str], bool], allow_cloud: bool
) -> CandidateOrder:
    """Return the order of a task's candidates, never empty. `is_warm` returns whether a model of
    the cluster is loaded."""
    task = table.tasks[name]
    named = [
        CandidateChoice(candidate, PRIMARY, table.provided(candidate))
        for candidate in task.candidates
    ]
    may_answer = [
        choice
        for place, choice in enumerate(named)
        if not place or allow_cloud or choice.provided is None
    ]
    left_out = tuple(choice.candidate for choice in named if choice not in may_answer)
    first = may_answer[0]
    if task.pin_primary or first.provided is not None or is_warm(first.candidate):
        return CandidateOrder(tuple(may_answer), left_out)
    own = [choice for choice in may_answer[1:] if choice.provided is None]
    warm = next((choice for choice in own if is_warm(choice.candidate)), None)
    if warm is None:
        return CandidateOrder(tuple(may_answer), left_out)
    why = f"it is loaded, and {first.candidate} is not"
    rest = [choice for choice in may_answer if choice is not warm]
    return CandidateOrder((CandidateChoice(warm.candidate, why), *rest), left_out)
