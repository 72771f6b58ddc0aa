"""Decides the order in which the candidates of a task are tried, and gives the reason for the first
one.

Pure. The order is that of `tasks.toml`, with one exception: if the primary (the first candidate) is
not loaded and not pinned, a loaded model is tried first. A provider's model is never moved forward.
It is tried if it is the primary, or after all candidates before it have failed. If fallback to
providers is not allowed, providers' models are left out, except a primary, which the operator
chose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bus.models.tasks import ProviderModel, SpillOver, TaskTable

PRIMARY = "primary"


@dataclass(frozen=True, slots=True)
class CandidateChoice:
    """A candidate that is tried, and the reason for its place in the order. `provided` is None for
    a model of the cluster."""

    candidate: str
    why: str
    provided: ProviderModel | None = None


@dataclass(frozen=True, slots=True)
class CandidateOrder:
    """The candidates that are tried one after the other until one answers, and the candidates that
    are left out. `spill`: the provider that takes over a request that waits too long for these
    candidates."""

    choices: tuple[CandidateChoice, ...]
    left_out: tuple[str, ...] = ()
    spill: SpillOver | None = None


def order_of(
    table: TaskTable, name: str, *, is_warm: Callable[[str], bool], allow_cloud: bool
) -> CandidateOrder:
    """Return the order of a task's candidates, never empty. `is_warm` returns whether a model of
    the cluster is loaded."""
    task = table.tasks[name]
    order = _order(table, name, is_warm=is_warm, allow_cloud=allow_cloud)
    return replace(order, spill=table.spill_of(task))


def _order(
    table: TaskTable, name: str, *, is_warm: Callable[[str], bool], allow_cloud: bool
) -> CandidateOrder:
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
    why = f"{warm.candidate} is loaded, and {first.candidate} is not"
    rest = [choice for choice in may_answer if choice is not warm]
    return CandidateOrder((CandidateChoice(warm.candidate, why), *rest), left_out)
