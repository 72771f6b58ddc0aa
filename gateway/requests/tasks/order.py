"""In which order the candidates of a task are asked, and why the first of them is the first.

Pure. The order is that of `tasks.toml`, but that a model which is loaded goes before a primary that
is not, unless the primary is pinned. A provider's model never goes before others for being there:
what is asked elsewhere is asked because it is the primary, or because those before it failed. Where
providers may not be fallen back to they are left out, but for a primary, which was chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bus.wire.tasks import ProviderModel, TaskTable

PRIMARY = "primary"


@dataclass(frozen=True, slots=True)
class CandidateChoice:
    """A candidate that may be asked, and why it is asked at its place unless one before it failed.
    `provided` is None for a model of the cluster."""

    candidate: str
    why: str
    provided: ProviderModel | None = None


@dataclass(frozen=True, slots=True)
class CandidateOrder:
    """Who is asked, one after the other, until one answers; and which candidates are left out."""

    choices: tuple[CandidateChoice, ...]
    left_out: tuple[str, ...] = ()


def order_of(
    table: TaskTable, name: str, *, is_warm: Callable[[str], bool], allow_cloud: bool
) -> CandidateOrder:
    """Return the order of a task's candidates; never an empty one. `is_warm` tells of a model of
    the cluster whether it is loaded."""
    task = table.tasks[name]
    named = [
        CandidateChoice(candidate, PRIMARY, table.provided(candidate))
        for candidate in task.candidates
    ]
    may_answer = [
        one for place, one in enumerate(named) if not place or allow_cloud or one.provided is None
    ]
    left_out = tuple(one.candidate for one in named if one not in may_answer)
    first = may_answer[0]
    if task.pin_primary or first.provided is not None or is_warm(first.candidate):
        return CandidateOrder(tuple(may_answer), left_out)
    own = [one for one in may_answer[1:] if one.provided is None]
    warm = next((one for one in own if is_warm(one.candidate)), None)
    if warm is None:
        return CandidateOrder(tuple(may_answer), left_out)
    why = f"it is loaded, and {first.candidate} is not"
    rest = [one for one in may_answer if one is not warm]
    return CandidateOrder((CandidateChoice(warm.candidate, why), *rest), left_out)
