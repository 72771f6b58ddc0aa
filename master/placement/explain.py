"""Explains why a placement is refused, with the numbers that led to it.

Pure. The reasons `insufficient_memory`, `unsupported`, `unknown_model` and `bad_request` cannot be
cured by waiting; `pending` and `no_capacity` have `retry_after_s` if waiting may help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.wire.cards import covers, parts_text
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.kv import kind_for
from master.placement import gpus
from master.placement.availability import Kind, PlacementSpec, split_cards
from master.placement.capacity import (
    MEMORY_SHARE,
    VRAM_SHARE,
    NodeCapacity,
    computes_in_vram,
    limit_bytes,
)
from master.placement.memory_cost import MemoryCost, cost_text, gb
from master.placement.pipeline_search import MAX_RANKS
from master.placement.search import Placement, PlacementProblem, why_unshardable

PENDING_RETRY_S = 2.0
BUSY_RETRY_S = 5.0
MENDED_RETRY_S = 30.0
_TOLD = ("usable_bytes", "free_bytes", "reserved_bytes", "loading_bytes", "ceiling_bytes")
"""Figures of a node that a refusal lists among its facts."""


@dataclass(frozen=True, slots=True)
class Crowded:
    """A placement that fits as soon as other instances on some nodes are unloaded. `shortages`: the
    bytes that each of these nodes lacks; 0: it lacks only a runner slot (a place for one more
    runner)."""

    shortages: Mapping[NodeId, int]
    refusal: Refusal


def refuse_early(
    spec: PlacementSpec, nodes: Sequence[NodeCapacity], allowed: Sequence[NodeCapacity]
) -> Refusal | None:
    """Return the refusal of a placement that can be refused without computing memory or speed; None
    if there is no such reason."""
    if not nodes:
        return Refusal(
            reason="pending",
            message="the cluster is still starting: no node has announced itself yet",
            retry_after_s=PENDING_RETRY_S,
        )
    cards = [card for node in nodes if (card := node.card_of(spec.model)) is not None]
    cards = cards or split_cards(spec.model, nodes)
    if not cards:
        return Refusal(
            reason="unknown_model",
            message=f"{spec.model} is on no node's disk; run `shoal pull {spec.model}`",
            field="model",
        )
    if (lacking := _unheld(spec.model, nodes)) is not None:
        return lacking
    longest = max(card.context_tokens for card in cards)
    if spec.context_tokens is not None and spec.context_tokens > longest:
        return Refusal(
            reason="unsupported",
            message=(
                f"context_tokens is {spec.context_tokens:,}; "
                f"the limit of {spec.model} is {longest:,}"
            ),
            field="context_tokens",
            facts={"context_tokens": longest},
        )
    wanted = spec.kv or "full"
    held = {kind_for(wanted, card.kv_group, windows=card.kv_windows) for card in cards}
    if wanted not in held:
        why = next((card.kv_full_because for card in cards if card.kv_full_because), "")
        return Refusal(
            reason="unsupported",
            message=(
                f"{spec.model} cannot hold its KV in {spec.kv}: "
                f"{why or 'the version of its node does not report KV formats'}; omit kv"
            ),
            field="kv",
        )
    if not allowed:
        text = "excluded_nodes excludes every node; leave at least one"
        return Refusal(reason="unsupported", message=text, field="excluded_nodes")
    if spec.min_nodes > len(allowed):
        return Refusal(
            reason="unsupported",
            message=(
                f"min_nodes is {spec.min_nodes}, but only {len(allowed)} of {len(nodes)} nodes can "
                "be used; lower it"
            ),
            field="min_nodes",
            facts={"nodes": len(allowed)},
        )
    ranks = max(spec.min_nodes, len(spec.layers))
    if ranks > MAX_RANKS:
        return Refusal(
            reason="unsupported",
            message=f"too many nodes: {ranks}; a group has at most {MAX_RANKS} ranks, one per node",
            field="layers" if len(spec.layers) == ranks else "min_nodes",
            facts={"max_ranks": MAX_RANKS},
        )
    return None


def _unheld(model: ModelId, nodes: Sequence[NodeCapacity]) -> Refusal | None:
    """Return the refusal of a model that no node has completely, if these nodes together lack some
    of its layers; else None."""
    cards = split_cards(model, nodes)
    if not cards or any(node.card_of(model) for node in nodes):
        return None
    parts = [part for node in nodes if (part := node.partial_of(model)) is not None]
    spans = [
        span
        for part in parts
        if part.card is not None and part.card.digest == cards[0].digest
        for span in part.layers
    ]
    held = [covers(spans, layer, layer + 1) for layer in range(cards[0].layers)]
    if all(held):
        return None
    first = held.index(False)
    last = next((layer for layer in range(first, len(held)) if held[layer]), len(held))
    text = (
        f"no available node holds layers {first} to {last - 1} of {model}, and none has all of its "
        f"{cards[0].layers} layers: {parts_text(model, [node.card for node in nodes])}; pull the "
        "missing layers with `shoal pull --split`, or all of it"
    )
    return Refusal(reason="unknown_model", message=text, field="model")


def only_in_parts(problem: PlacementProblem) -> Refusal | None:
    """Return the refusal if the usable nodes have the model only by layers, and no pipeline of
    these layers is possible. Return None if a node has or can fetch other layers."""
    if not all(copy.is_part for copy in problem.copies):
        return None
    model = problem.spec.model
    nodes = [copy.node for copy in problem.copies]
    held = parts_text(model, [node.card for node in nodes])
    text = (
        f"no node has all of {model}, and no pipeline of the layers on the disks fits the memory "
        f"and the conditions of this load: {held}; pull other layers with `shoal pull --split`"
    )
    return _unheld(model, nodes) or Refusal(reason="unsupported", message=text, field="model")


def unmeasured() -> Refusal:
    """Return the refusal for a time when no node's memory is known yet."""
    return Refusal(
        reason="pending",
        message="no memory reading has arrived yet; check that `telemetry` is running",
        retry_after_s=PENDING_RETRY_S,
    )


def no_node_can_run(model: ModelId, blocked: dict[str, str]) -> Refusal:
    """Return the refusal if every allowed node is blocked; `blocked` says why, by node name."""
    why = "; ".join(f"{name} {text}" for name, text in sorted(blocked.items()))
    return Refusal(
        reason="unsupported",
        message=f"no node can run {model}: {why}",
        field="model",
        facts={"nodes": dict(blocked)},
    )


def mended_later(refusal: Refusal, nodes: Sequence[NodeCapacity]) -> Refusal:
    """Return the refusal unchanged if runners can start on all nodes. Otherwise return a refusal
    that names the broken nodes and can be retried, because their repair may change the answer."""
    broken = {node.name: node.card.cannot_run for node in nodes if node.card.cannot_run}
    if not broken:
        return refusal
    untold = [f"{name} {why}" for name, why in sorted(broken.items()) if why not in refusal.message]
    return refusal.model_copy(
        update={
            "reason": "not_ready",
            "message": "; ".join([refusal.message, *untold]),
            "field": None,
            "retry_after_s": MENDED_RETRY_S,
            "facts": {**refusal.facts, "given_up": True},
        }
    )


def unsupported_kind(problem: PlacementProblem, kind: Kind, size: int) -> Refusal | None:
    """Return the refusal if the model itself does not support a group of this kind and size; None
    if it does."""
    why = why_unshardable(problem.card, kind, size)
    if why is None:
        return None
    return Refusal(
        reason="unsupported",
        message=f"{problem.spec.model} as a {kind} group of {size}: {why}",
        field="sharding" if problem.spec.sharding else "min_nodes",
    )


def crowded_node(model: ModelId, node: NodeCapacity, need: MemoryCost) -> Crowded:
    """Return what one node lacks to run the whole model: memory, else a runner slot."""
    if need.total <= node.usable_bytes:
        text = (
            f"{model} fits on {node.name}, but all {node.card.slots} runner slots there are taken"
        )
    else:
        text = (
            f"{model} needs {cost_text(need)}; {node.name} has {gb(node.usable_bytes)} "
            f"GB available ({_capacity_text(node)})"
        )
    facts = _facts(node, need)
    refusal = Refusal(reason="no_capacity", message=text, retry_after_s=BUSY_RETRY_S, facts=facts)
    return Crowded({node.id: max(0, need.total - node.usable_bytes)}, refusal)


def crowded_group(placed: Placement) -> Crowded:
    """Return what a group lacks: for each of its ranks, the missing memory or runner slot."""
    shortages: dict[NodeId, int] = {}
    words: list[str] = []
    for rank in placed.ranks:
        node, short = rank.copy.node, rank.need.total - rank.usable_bytes
        if short > 0:
            words.append(
                f"{node.name} needs {gb(rank.need.total)} GB and has "
                f"{gb(rank.usable_bytes)} GB available"
            )
        elif not node.has_slot:
            words.append(f"all {node.card.slots} runner slots of {node.name} are taken")
        if short > 0 or not node.has_slot:
            shortages[node.id] = max(0, short)
    refusal = Refusal(
        reason="no_capacity",
        message=(
            f"{placed.card.model} needs {cost_text(placed.whole)}; over {len(placed.ranks)} nodes "
            + "; ".join(words)
        ),
        retry_after_s=BUSY_RETRY_S,
        facts={
            "need_bytes": placed.whole.total,
            "nodes": [rank.copy.node.id for rank in placed.ranks],
            "short_bytes": sum(shortages.values()),
        },
    )
    return Crowded(shortages, refusal)


def impossible(problem: PlacementProblem) -> Refusal:
    """Return the refusal if all nodes that may be used could never hold the model together."""
    best = max(problem.copies, key=lambda copy: (copy.node.ceiling_bytes, copy.node.id))
    node, need = best.node, best.costs.whole
    text = (
        f"{problem.spec.model} needs {cost_text(need)}; the limit for all models on {node.name} "
        f"is {gb(node.ceiling_bytes)} GB ({_ceiling_text(node)})"
    )
    if len(problem.copies) > 1:
        together = sum(copy.node.ceiling_bytes for copy in problem.copies)
        text += (
            f"; no group of at most {MAX_RANKS} of the {len(problem.copies)} available nodes "
            f"holds it ({gb(together)} GB together, of which each rank takes 0.26 GB beside its "
            "share)"
        )
    text += _disks_text(problem)
    field = "model"
    if problem.spec.sharding or problem.spec.min_nodes > 1:
        field = "sharding" if problem.spec.sharding else "min_nodes"
    return Refusal(
        reason="insufficient_memory", message=text, field=field, facts=_facts(node, need)
    )


def no_group(problem: PlacementProblem, kind: Kind, size: int) -> Refusal:
    """Return the refusal if the model, the memory or the runner slots do not allow such a group
    now."""
    refused = unsupported_kind(problem, kind, size)
    if refused is not None:
        return refused
    rooms = sorted(
        (copy.node.usable_bytes for copy in problem.copies if copy.node.has_slot), reverse=True
    )[:size]
    copy = problem.copies[0]
    if len(rooms) < size:
        text = f"only {len(rooms)} nodes have a free runner slot and can run it"
    elif kind == "tensor":
        need = copy.costs.tensor_rank_cost(size, splits_kv=copy.card.tensor_splits_kv)
        text = (
            f"each of {size} ranks needs {cost_text(need)}; the smallest of the {size} largest "
            f"nodes has {gb(rooms[-1])} GB available"
        )
    else:
        text = (
            f"the model needs {cost_text(copy.costs.whole)} (and 0.26 GB for each further rank); "
            f"the {size} largest compatible nodes have {gb(sum(rooms))} GB available"
        )
    return Refusal(
        reason="no_capacity",
        message=f"{problem.spec.model} as a {kind} group of {size}: {text}",
        retry_after_s=BUSY_RETRY_S,
        facts={"usable_bytes": sum(rooms), "nodes": len(rooms)},
    )


def _disks_text(problem: PlacementProblem) -> str:
    """Return a part of a sentence that names the nodes on whose disks not all of the files fit;
    empty if there are none."""
    small = [
        f"{copy.node.name} {gb(copy.disk_bytes)} GB"
        for copy in problem.copies
        if copy.disk_bytes is not None
    ]
    return f"; disk space limits its files to: {', '.join(small)}" if small else ""


def _ceiling_text(node: NodeCapacity) -> str:
    """Return the text that says what determines a node's memory ceiling, and which setting changes
    it."""
    card = node.card
    if node.home is not None:
        return gpus.ceiling_text(node.home, node.rooms)
    if computes_in_vram(card):
        return f"{VRAM_SHARE:.0%} of its GPU's {gb(card.vram_bytes)} GB"
    if limit_bytes(card):
        return "the GPU's wired memory limit: iogpu.wired_limit_mb, else Metal's figure"
    text = f"{MEMORY_SHARE:.0%} of {gb(card.memory_bytes)} GB"
    machine_bytes = card.memory_bytes if node.reading is None else node.reading.memory_total_bytes
    if machine_bytes > card.memory_bytes:
        text += f", the memory_bytes setting; the machine has {gb(machine_bytes)} GB"
    return text


def _capacity_text(node: NodeCapacity) -> str:
    return (
        f"{gpus.rooms_text(node.rooms)}{gb(node.free_bytes or 0)} free, of which "
        f"{gb(node.loading_bytes)} are reserved for loading models; {gb(node.reserved_bytes)} of "
        f"at most {gb(node.memory_ceiling_bytes)} reserved"
    )


def _facts(node: NodeCapacity, need: MemoryCost) -> dict[str, Any]:
    return {
        "node": node.id,
        "need_bytes": need.total,
        "weights_bytes": need.weights,
        "kv_bytes": need.kv,
        "context_tokens": need.context_tokens,
        **{name: getattr(node, name) for name in _TOLD},
        "memory_bytes": node.card.memory_bytes,
        **gpus.facts(node.rooms),
        "slots": node.card.slots,
        "shards": node.shards,
    }
