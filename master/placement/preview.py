"""Renders a placement as JSON: for `--dry-run`, previews and the dashboard.

Pure. Bytes per node are the same as in the placement itself; speeds are predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from master.placement.availability import Kind, LocalCopy, PlacementSpec
from master.placement.capacity import NodeCapacity
from master.placement.explain import Crowded
from master.placement.memory_cost import RunnerSizing, cost_text
from master.placement.place import alternatives, place, placement_problem
from master.placement.search import PlacedRank, Placement
from master.placement.speed import Links


def plan_of(placed: Placement, links: Links) -> dict[str, Any]:
    """Return one placement as JSON.

    `node`, `backend` and `usable_bytes` are those of rank 0. `links` has an entry for each pair of
    neighbours in the ring, and says which figures were measured.
    """
    lead = placed.lead
    return {
        "model": placed.card.model,
        "node": lead.copy.node.id,
        "nodes": [rank.copy.node.id for rank in placed.ranks],
        "sharding": placed.sharding,
        "collectives": placed.collectives if len(placed.ranks) > 1 else None,
        "backend": lead.copy.backend,
        "context_tokens": placed.context_tokens,
        "kv": placed.lead.copy.kv,
        "need_bytes": sum(rank.need.total for rank in placed.ranks),
        "reserved_bytes": sum(rank.reserved_bytes for rank in placed.ranks),
        "usable_bytes": lead.usable_bytes,
        "fetch_bytes": placed.fetch_bytes,
        "tokens_per_s": round(placed.tokens_per_s, 2),
        "arithmetic": cost_text(placed.whole),
        "ranks": [_rank(rank) for rank in placed.ranks],
        "links": _links(placed, links),
    }


def previews(
    spec: PlacementSpec, nodes: Sequence[NodeCapacity], sizing: RunnerSizing, links: Links
) -> dict[str, Any] | Refusal:
    """Return each size and kind of group with its plan or refusal, the memory of a whole instance
    on each possible node, and the verdict of a placement now."""
    problem = placement_problem(spec, nodes, sizing, links)
    if isinstance(problem, Refusal):
        return problem
    verdict = place(spec, nodes, sizing, links)
    chosen = verdict if isinstance(verdict, Placement) else None
    refusal = verdict.refusal if isinstance(verdict, Crowded) else verdict
    size = 1 if chosen is None else len(chosen.ranks)
    return {
        "model": spec.model,
        "previews": [
            preview_of(*alternative, chosen, links) for alternative in alternatives(problem, size)
        ],
        "nodes": [_alone(copy) for copy in problem.copies],
        "blocked": dict(problem.blocked),
        "chosen": None if chosen is None else plan_of(chosen, links),
        "refusal": refusal.model_dump(mode="json") if isinstance(refusal, Refusal) else None,
    }


def preview_of(
    size: int,
    kind: Kind | None,
    placement: Placement | Refusal,
    chosen: Placement | None,
    links: Links,
) -> dict[str, Any]:
    """Return one row of the previews: the plan for a group of this size and kind, or why there is
    none."""
    placed = placement if isinstance(placement, Placement) else None
    return {
        "size": size,
        "sharding": kind or "none",
        "fits": placed is not None,
        "chosen": placed is not None and _seats(placed) == _seats(chosen),
        "plan": None if placed is None else plan_of(placed, links),
        "refusal": placement.model_dump(mode="json") if isinstance(placement, Refusal) else None,
    }


def _alone(copy: LocalCopy) -> dict[str, Any]:
    """Return the memory that the whole model needs on one node, and the missing bytes: now, and if
    all other models were unloaded."""
    node, need = copy.node, copy.costs.whole
    return {
        "node": node.id,
        "name": node.name,
        "backend": copy.backend,
        "weights_bytes": need.weights,
        "kv_bytes": need.kv,
        "kv": copy.kv,
        "context_tokens": need.context_tokens,
        "need_bytes": need.total,
        "arithmetic": cost_text(need),
        "usable_bytes": node.usable_bytes,
        "ceiling_bytes": node.ceiling_bytes,
        "missing_bytes": max(0, need.total - node.usable_bytes),
        "never_bytes": max(0, need.total - node.ceiling_bytes),
        "has_slot": node.has_slot,
    }


def _seats(placed: Placement | None) -> tuple[str, set[NodeId]] | None:
    """Return the kind of group and its nodes; None without a placement."""
    return placed and (placed.sharding, {rank.copy.node.id for rank in placed.ranks})


def _links(placed: Placement, links: Links) -> list[dict[str, Any]]:
    """Return the links around the ring, from each rank to the next; a pair has one link."""
    nodes = [rank.copy.node for rank in placed.ranks]
    pairs = [*pairwise(nodes), *([(nodes[-1], nodes[0])] if len(nodes) > 2 else [])]
    rows: list[dict[str, Any]] = []
    for node, next_node in pairs:
        link = links.between(node, next_node)
        rows.append(
            {
                "from": node.name,
                "to": next_node.name,
                "latency_us": round(1e6 * link.latency_s, 1),
                "bytes_per_s": round(link.bytes_per_s),
                "measured": links.measured_between(node, next_node) is not None,
            }
        )
    return rows


def _rank(rank: PlacedRank) -> dict[str, Any]:
    node, need = rank.copy.node, rank.need
    return {
        "rank": rank.rank,
        "node": node.id,
        "name": node.name,
        "backend": rank.copy.backend,
        "first_layer": rank.first_layer,
        "last_layer": rank.last_layer,
        "weights_bytes": need.weights,
        "kv_bytes": need.kv,
        "need_bytes": need.total,
        "reserved_bytes": rank.reserved_bytes,
        "usable_bytes": rank.usable_bytes,
        "devices": [share.model_dump(mode="json") for share in rank.devices],
        "fetch_bytes": rank.fetch_bytes,
        "stage_ms": round(1000 * rank.read_s, 3),
        "arithmetic": cost_text(need),
    }
