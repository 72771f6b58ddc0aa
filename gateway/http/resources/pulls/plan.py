"""Talks to workers and the leader: makes the plan of a pull. The plan has the bytes to fetch, the
nodes with enough memory for the model, and the predicted speed. Or it divides the model's layers
over nodes, which then pull their layers.

An unknown figure of a plan is null, and the plan says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.wire.errors import OwnerSilent, Refusal
from bus.wire.ids import NodeId
from bus.wire.messages.readings import PullForecast, PullState
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from gateway.control.pulling import Fit, Fitting, HeldPull, PullTarget, Splitting, Verdict
from gateway.dialects import faults
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.requests.pull_faults import of_pull


class PullDisk(Closed):
    """The disk that would store the model. `missing_bytes` is how much space it lacks, if
    `margin_bytes` stay free."""

    free_bytes: int
    margin_bytes: int
    missing_bytes: int


class PullBill(Closed):
    """The memory of an instance on one node: the weights, the KV cache of `context_tokens` in the
    kind `kv`, and the total. `arithmetic` shows the sum as text."""

    weights_bytes: int
    kv_bytes: int
    kv: str
    context_tokens: int
    need_bytes: int
    arithmetic: str


class PullNode(Closed):
    """A node that could run the model alone if it had the memory. It lacks `missing_bytes` now, and
    `never_bytes` even if all other models are unloaded."""

    node: str
    name: str
    need_bytes: int
    usable_bytes: int
    ceiling_bytes: int
    missing_bytes: int
    never_bytes: int
    has_slot: bool


class PullPlan(Closed):
    """The plan of a pull (`dry_run`). The hub has `files` of `total_bytes`; the node lacks
    `fetch_bytes` of them. `sources` are nodes that have the model, if any. `fits` is `now`, `later`
    (once other models are unloaded), `never` or `unknown`; `why` explains the last three.
    `placement` is the placement that would be used now. `tokens_per_s` predicts the speed of one
    stream; `no_speed` says why it is unknown. `blocked` maps the name of each node that cannot run
    the model to the reason. `note` says if the model is already on disk. `choice`: which
    quantisation of a GGUF repository would be pulled, and why; else empty."""

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
    choice: str
    nodes: list[PullNode]
    blocked: dict[str, str]


class SplitNode(Closed):
    """A node of a split, with its layers from `first_layer` up to, not including, `last_layer`. It
    downloads about `fetch_bytes`. `missing_bytes` is how much space its disk lacks. `why`: the
    reason why its pull did not begin; empty if it did, or if nothing was to begin."""

    node: str
    name: str
    first_layer: int
    last_layer: int
    fetch_bytes: int
    missing_bytes: int
    why: str


class PullSplit(Closed):
    """A model that nodes pull by layers (`split`): each of the `nodes`, in the order of the
    `layers`, downloads only its own. `begun`: the pulls run in the background now; see
    `GET /models/pulls`."""

    model: str
    known_as: str
    hub: str
    revision: str
    layers: int
    total_bytes: int
    begun: bool
    nodes: list[SplitNode]


async def split_of(
    splitting: Splitting,
    target: PullTarget,
    counts: Mapping[NodeId, int | None],
    names: Mapping[NodeId, str],
    *,
    dry_run: bool,
) -> PullSplit:
    """Split a model over the nodes of `counts`, and have each node pull its layers unless this is a
    dry run. `names` are the nodes' names. Raises HttpFaultRaised, BadRequest."""
    try:
        plan = await splitting.plan(target, counts)
    except OwnerSilent as silent:
        raise HttpFaultRaised(faults.owner_silent(str(silent), silent.waited_s)) from None
    if isinstance(plan, PullState):
        raise HttpFaultRaised(of_pull(plan))
    if isinstance(plan, Refusal):
        raise HttpFaultRaised(faults.of_refusal(plan))
    lacking = [
        f"{names.get(stage.node, stage.node)} lacks {stage.missing_bytes / 1e9:,.1f} GB of disk "
        f"space for layers {stage.first} to {stage.last - 1}"
        for stage in plan.stages
        if stage.missing_bytes
    ]
    if lacking and not dry_run:
        text = f"{'; '.join(lacking)}; free some space, or give each node its number of layers"
        raise HttpFaultRaised(HttpFault(507, "insufficient_storage", text, field="split"))
    why: Mapping[NodeId, str] = {} if dry_run else await splitting.begin(plan)
    nodes = [
        SplitNode(
            node=stage.node,
            name=names.get(stage.node, stage.node),
            first_layer=stage.first,
            last_layer=stage.last,
            fetch_bytes=stage.fetch_bytes,
            missing_bytes=stage.missing_bytes,
            why=why.get(stage.node, ""),
        )
        for stage in plan.stages
    ]
    return PullSplit(
        model=plan.state.model,
        known_as=target.known_as,
        hub=plan.state.hub,
        revision=plan.state.revision,
        layers=plan.card.layers,
        total_bytes=plan.state.total_bytes,
        begun=not dry_run,
        nodes=nodes,
    )


async def plan_of(fitting: Fitting, node: NodeId, target: PullTarget) -> PullPlan:
    """Return the plan of a pull to a node. Raises HttpFaultRaised if the pull would fail."""
    held = await fitting.forecast(node, target)
    if held.state.phase == "failed":
        raise HttpFaultRaised(of_pull(held.state))
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
        bill=None if fit.bill is None else PullBill(**_fields_of(PullBill, fit.bill)),
        placement=None if fit.plan is None else dict(fit.plan),
        tokens_per_s=speed,
        no_speed=no_speed,
        nodes=[PullNode(**_fields_of(PullNode, node_fit)) for node_fit in fit.nodes],
        blocked=dict(fit.blocked),
        choice=state.choice,
    )


def _speed(fit: Fit, no_speed: str) -> tuple[float | None, str]:
    """Return the predicted tokens per second, or None and the reason."""
    if fit.verdict == "unknown":
        return None, "the model's memory could not be estimated"
    if fit.plan is None:
        return None, "the model does not fit now"
    return (None, no_speed) if no_speed else (fit.plan["tokens_per_s"], "")


def _disk(forecast: PullForecast) -> PullDisk:
    free_bytes = forecast.disk_free_bytes
    missing = max(0, forecast.lacking_bytes + DISK_MARGIN_BYTES - free_bytes)
    return PullDisk(free_bytes=free_bytes, margin_bytes=DISK_MARGIN_BYTES, missing_bytes=missing)


def _fields_of(answer: type[Closed], source: Any) -> dict[str, Any]:
    """Return those fields of `source` that the answer has."""
    return {name: source[name] for name in answer.model_fields}
