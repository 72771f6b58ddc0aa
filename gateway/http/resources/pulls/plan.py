"""Talks to a worker and the holder for clients who ask what a pull would bring: how many bytes,
into which memory of the cluster the model would fit, and how fast it would be there.

Nothing of the weights is fetched. What is not known is null, and said why.
"""

from __future__ import annotations

from typing import Any

from bus.wire.ids import NodeId
from bus.wire.messages.readings import PullForecast
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from gateway.cluster.cancels import OwnerSilent
from gateway.cluster.pulling import Fit, Fitting, HeldPull, PullTarget, Verdict
from gateway.dialects import faults
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFaultRaised
from gateway.http.resources.pulls.running import owner_silent


class PullDisk(Closed):
    """The disk that the model would go to. `missing_bytes` are those that it lacks, with
    `margin_bytes` that stay free."""

    free_bytes: int
    margin_bytes: int
    missing_bytes: int


class PullBill(Closed):
    """What a whole copy takes in memory on one node: weights, KV for `context_tokens` held as `kv`,
    and in all, as `arithmetic` sums it up."""

    weights_bytes: int
    kv_bytes: int
    kv: str
    context_tokens: int
    need_bytes: int
    arithmetic: str


class PullNode(Closed):
    """A node that could run the model alone, if it had the memory: `missing_bytes` now, and
    `never_bytes` even with all else unloaded."""

    node: str
    name: str
    need_bytes: int
    usable_bytes: int
    ceiling_bytes: int
    missing_bytes: int
    never_bytes: int
    has_slot: bool


class PullPlan(Closed):
    """What a pull would bring (`dry_run`). `files` with `total_bytes` lie at the hub, of which
    `fetch_bytes` are still to come; from `sources`, nodes that have the model, where there are any.
    `fits` is `now`, `later` (once others have left), `never`, or `unknown`; `why` says it, where it
    is not `now`. `placement` is what placing it would do now, with `tokens_per_s`, a prediction
    for one stream; `no_speed` says why that is not known. `blocked` are nodes that could not run
    it, by name. `note` says that it is here already."""

    model: str
    node: str
    known_as: str
    hub: str
    revision: str
    digest: str
    files: int
    total_bytes: int
    fetch_bytes: int
    sources: list[str]
    note: str
    disk: PullDisk | None
    fits: Verdict
    why: str
    bill: PullBill | None
    placement: dict[str, Any] | None
    tokens_per_s: float | None
    no_speed: str
    nodes: list[PullNode]
    blocked: dict[str, str]


async def plan_of(fitting: Fitting, node: NodeId, target: PullTarget) -> PullPlan:
    """Return what a pull to a node would bring. Raises HttpFaultRaised where it would fail."""
    try:
        held = await fitting.forecast(node, target)
    except OwnerSilent as silent:
        raise HttpFaultRaised(owner_silent(silent)) from None
    if held.state.phase == "failed":
        raise HttpFaultRaised(faults.of_pull(held.state))
    return _plan(held, node, target)


def _plan(held: HeldPull, node: NodeId, target: PullTarget) -> PullPlan:
    state, fit, forecast = held.state, held.fit, held.state.forecast
    speed, no_speed = _speed(fit, forecast.no_speed if forecast is not None else "")
    return PullPlan(
        model=state.model,
        node=node,
        known_as=target.known_as,
        hub=state.hub,
        revision=state.revision,
        digest=state.digest,
        files=state.files,
        total_bytes=state.total_bytes,
        fetch_bytes=forecast.lacking_bytes if forecast is not None else 0,
        sources=list(state.sources),
        note=state.note,
        disk=None if forecast is None else _disk(forecast),
        fits=fit.verdict,
        why=fit.why,
        bill=None if fit.bill is None else PullBill(**_told(PullBill, fit.bill)),
        placement=None if fit.plan is None else dict(fit.plan),
        tokens_per_s=speed,
        no_speed=no_speed,
        nodes=[PullNode(**_told(PullNode, one)) for one in fit.nodes],
        blocked=dict(fit.blocked),
    )


def _speed(fit: Fit, no_speed: str) -> tuple[float | None, str]:
    """Return the predicted speed, or None and why there is none."""
    if fit.verdict == "unknown":
        return None, "its memory could not be estimated"
    if fit.plan is None:
        return None, "it does not fit now"
    return (None, no_speed) if no_speed else (fit.plan["tokens_per_s"], "")


def _disk(forecast: PullForecast) -> PullDisk:
    free_bytes = forecast.disk_free_bytes
    missing = max(0, forecast.lacking_bytes + DISK_MARGIN_BYTES - free_bytes)
    return PullDisk(free_bytes=free_bytes, margin_bytes=DISK_MARGIN_BYTES, missing_bytes=missing)


def _told(answer: type[Closed], said: Any) -> dict[str, Any]:
    """Return of what was said the fields that an answer has."""
    return {name: said[name] for name in answer.model_fields}
