"""Whether a model could run after its pull, from the leader's answer.

Pure. There are four verdicts. `now`: the model could be placed immediately. `later`: it could be
placed after other models are unloaded. `never`: no nodes of the cluster could hold it, even with
all other models unloaded. `unknown`: no estimate was possible.
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
    """The verdict and its reason.

    `plan`: where the model would be placed now. `nodes` has, for each node that could run the
    model, the memory of a whole instance and how much of it is lacking. `blocked`: the names of
    other nodes and why they cannot run the model. `bill`: the entry of `nodes` for the node that
    pulls the model. If `nodes` has no entry for that node, `bill` is the first entry.
    """

    verdict: Verdict
    why: str = ""
    plan: Mapping[str, Any] | None = None
    nodes: Sequence[Mapping[str, Any]] = ()
    blocked: Mapping[str, str] = field(default_factory=dict[str, str])
    bill: Mapping[str, Any] | None = None


def fit_of(answer: Acknowledged | CommandRefused, node: NodeId) -> Fit:
    """Return the verdict from the leader's answer to a placement that was only tried (a dry run
    with previews). `node` would pull the model."""
    if isinstance(answer, CommandRefused):
        return Fit("unknown", why=_unreckoned(answer.refusal))
    plan = answer.plan or {}
    nodes: list[Mapping[str, Any]] = list(plan.get("nodes", ()))
    bill = next((row for row in nodes if row["node"] == node), nodes[0] if nodes else None)
    facts: dict[str, Any] = {"nodes": nodes, "blocked": plan.get("blocked", {}), "bill": bill}
    if plan.get("chosen") is not None:
        return Fit("now", plan=plan["chosen"], **facts)
    if plan.get("refusal") is None:
        return Fit(
            "unknown", why="the leader's answer has neither a placement nor a refusal", **facts
        )
    refusal = Refusal.model_validate(plan["refusal"])
    verdicts: dict[str, Verdict] = {"insufficient_memory": "never", "no_capacity": "later"}
    verdict = verdicts.get(refusal.reason, "unknown")
    return Fit(verdict, why=refusal.message, **facts)


def refused_pull(state: PullState, fit: Fit) -> PullState:
    """Return the final state of a pull whose model fits nowhere."""
    text = (
        f"{fit.why}. No weights were downloaded; use `anyway: true` (`shoal pull --anyway`) "
        "to pull it anyway"
    )
    return state.model_copy(
        update={"phase": "failed", "reason": "too_large", "message": text, "forecast": None}
    )


def too_late(state: PullState, waited_s: float) -> PullState:
    """Return the final state of a dry run for which the node did not get the file list in time."""
    note = f" ({state.note})" if state.note else ""
    text = f"the node did not get the file list within {waited_s:g} s{note}; try again"
    failed = {"phase": "failed", "reason": "unreachable", "message": text}
    return state.model_copy(update=failed)


def unreckoned(state: PullState, fit: Fit) -> PullState:
    """Return the state of a pull that continues although it is unknown whether the model fits. The
    state's forecast gets the reason."""
    forecast = state.forecast or PullForecast()
    return state.model_copy(update={"forecast": forecast.model_copy(update={"why": fit.why})})


def _unreckoned(refusal: Refusal) -> str:
    """Return why the leader could not estimate whether a model fits."""
    if refusal.reason == "unknown_model":
        return "the target node takes no new work now; see `shoal nodes`"
    return refusal.message
