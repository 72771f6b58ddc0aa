"""Whether a model that is to be pulled could be run, from what the holder says of it.

Pure. `now`: it could be placed at once; `later`: once others have left; `never`: no nodes that
there are could hold it, with all else unloaded; `unknown`: that could not be reckoned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from bus.wire.messages.commands import Acknowledged, CommandRefused
from bus.wire.messages.readings import PullForecast, PullState

Verdict = Literal["now", "later", "never", "unknown"]


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict with its reason; `plan` is where it would be placed now, `nodes` what a whole
    copy takes on each node that could run it, and lacks there; `blocked` says of others, by name,
    why they cannot. `bill` is what it takes on the node that would pull it, else on another."""

    verdict: Verdict
    why: str = ""
    plan: Mapping[str, Any] | None = None
    nodes: Sequence[Mapping[str, Any]] = ()
    blocked: Mapping[str, str] = field(default_factory=dict[str, str])
    bill: Mapping[str, Any] | None = None


def fit_of(answer: Acknowledged | CommandRefused, node: NodeId) -> Fit:
    """Return the fit that an answer to a dry run with previews stands for; `node` would pull."""
    if isinstance(answer, CommandRefused):
        return Fit("unknown", why=_unreckoned(answer.refusal))
    plan = answer.plan or {}
    nodes: list[Mapping[str, Any]] = list(plan.get("nodes", ()))
    bill = next((one for one in nodes if one["node"] == node), nodes[0] if nodes else None)
    told: dict[str, Any] = {"nodes": nodes, "blocked": plan.get("blocked", {}), "bill": bill}
    if plan.get("chosen") is not None:
        return Fit("now", plan=plan["chosen"], **told)
    if plan.get("refusal") is None:
        return Fit(
            "unknown", why="the leader's answer has neither a placement nor a refusal", **told
        )
    refusal = Refusal.model_validate(plan["refusal"])
    verdicts: dict[str, Verdict] = {"insufficient_memory": "never", "no_capacity": "later"}
    verdict = verdicts.get(refusal.reason, "unknown")
    return Fit(verdict, why=refusal.message, **told)


def refused_pull(state: PullState, fit: Fit) -> PullState:
    """Return how a pull ends whose model fits nowhere."""
    text = (
        f"{fit.why}. No weights were downloaded; use `anyway: true` (`shoal pull --anyway`) "
        "to pull it anyway"
    )
    return state.model_copy(
        update={"phase": "failed", "reason": "too_large", "message": text, "forecast": None}
    )


def too_late(state: PullState, waited_s: float) -> PullState:
    """Return how a dry run ends that was not told in time what would come."""
    note = f" ({state.note})" if state.note else ""
    text = f"the node did not get the file list within {waited_s:g} s{note}; try again"
    failed = {"phase": "failed", "reason": "unreachable", "message": text}
    return state.model_copy(update=failed)


def unreckoned(state: PullState, fit: Fit) -> PullState:
    """Return the state of a pull that goes on though it is not known whether its model fits: the
    forecast says why."""
    forecast = state.forecast or PullForecast()
    return state.model_copy(update={"forecast": forecast.model_copy(update={"why": fit.why})})


def _unreckoned(refusal: Refusal) -> str:
    """Return why the holder could not say whether a model fits."""
    if refusal.reason == "unknown_model":
        return "the target node takes no new work now; see `shoal nodes`"
    return refusal.message
