"""Why a placement is refused, in words with the numbers that led to it.

Pure. Reasons `insufficient_memory`, `unsupported`, `unknown_model` and `bad_request` cannot be
cured by waiting; `pending` and `no_capacity` carry `retry_after_s` where it may help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from master.placement.availability import Kind, Wish
from master.placement.capacity import MEMORY_SHARE, Seat
from master.placement.memory_cost import Need, bill_text, gb
from master.placement.pipeline_search import MAX_RANKS
from master.placement.search import Ground, Placement, why_unshardable

PENDING_RETRY_S = 2.0
BUSY_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is missing on a node: bytes, or (0) a slot."""

    node: NodeId
    short_bytes: int


@dataclass(frozen=True, slots=True)
class Crowded:
    """It would fit if others made way on each of these nodes."""

    shortages: tuple[Shortage, ...]
    refusal: Refusal

    @property
    def short_bytes(self) -> int:
        """Over all nodes."""
        return sum(one.short_bytes for one in self.shortages)


def refused_early(wish: Wish, nodes: Sequence[Seat], allowed: Sequence[Seat]) -> Refusal | None:
    """What can be said before anything is computed."""
    if not nodes:
        return Refusal(
            reason="pending",
            message="no node has announced itself yet; the cluster is still starting",
            retry_after_s=PENDING_RETRY_S,
        )
    known = [card for seat in nodes if (card := seat.card_of(wish.model)) is not None]
    if not known:
        return Refusal(
            reason="unknown_model",
            message=f"{wish.model} is on no node's disk; to get it: `shoal pull {wish.model}`",
            field="model",
        )
    longest = max(card.context_tokens for card in known)
    if wish.context_tokens is not None and wish.context_tokens > longest:
        return Refusal(
            reason="unsupported",
            message=(
                f"{wish.model} was made for {longest:,} tokens of context, "
                f"{wish.context_tokens:,} were asked for"
            ),
            field="context_tokens",
            facts={"context_tokens": longest},
        )
    if not allowed:
        return Refusal(
            reason="no_capacity", message="every node is excluded", field="excluded_nodes"
        )
    if wish.min_nodes > len(allowed):
        return Refusal(
            reason="unsupported",
            message=(
                f"min_nodes {wish.min_nodes}: there are {len(allowed)} nodes that may be used"
                f" ({len(nodes)} in all)"
            ),
            field="min_nodes",
            facts={"nodes": len(allowed)},
        )
    ranks = max(wish.min_nodes, len(wish.layers))
    if ranks > MAX_RANKS:
        return Refusal(
            reason="unsupported",
            message=f"{ranks} nodes: a group has at most {MAX_RANKS} ranks, one on each node",
            field="layers" if len(wish.layers) == ranks else "min_nodes",
            facts={"max_ranks": MAX_RANKS},
        )
    return None


def unmeasured() -> Refusal:
    """Nobody's memory is known yet."""
    return Refusal(
        reason="pending",
        message="no memory reading has come yet; is `telemetry` running?",
        retry_after_s=PENDING_RETRY_S,
    )


def nobody_can_run(ground_model: ModelId, blocked: dict[str, str]) -> Refusal:
    """No allowed node has what the model needs beside memory."""
    why = "; ".join(f"{name} {text}" for name, text in sorted(blocked.items()))
    return Refusal(
        reason="unsupported",
        message=f"no node can run {ground_model}: {why}",
        field="model",
        facts={"nodes": dict(blocked)},
    )


def unsupported_kind(ground: Ground, kind: Kind, size: int) -> Refusal | None:
    """The model itself forbids it."""
    why = why_unshardable(ground.card, kind, size)
    if why is None:
        return None
    return Refusal(
        reason="unsupported",
        message=f"{ground.wish.model} as a {kind} group of {size}: {why}",
        field="sharding" if ground.wish.sharding else "min_nodes",
    )


def crowded_seat(model: ModelId, seat: Seat, need: Need) -> Crowded:
    """It would fit on this node alone if others left."""
    if need.total <= seat.usable_bytes:
        text = f"{model} fits on {seat.name}, but its {seat.slots} runner slots are taken"
    else:
        text = (
            f"{model} needs {bill_text(need)}, and {seat.name} can give {gb(seat.usable_bytes)} "
            f"GB now ({_seat_text(seat)})"
        )
    refusal = Refusal(
        reason="no_capacity",
        message=text,
        retry_after_s=BUSY_RETRY_S,
        facts=_facts(seat, need),
    )
    return Crowded((Shortage(seat.node, max(0, need.total - seat.usable_bytes)),), refusal)


def crowded_group(placed: Placement) -> Crowded:
    """It would fit over these nodes, split so, if others left some of them."""
    shortages: list[Shortage] = []
    words: list[str] = []
    for rank in placed.ranks:
        seat, short = rank.copy.seat, rank.need.total - rank.usable_bytes
        if short > 0:
            words.append(
                f"{seat.name} would need {gb(rank.need.total)} GB and can give "
                f"{gb(rank.usable_bytes)} GB now"
            )
        elif not seat.has_slot:
            words.append(f"the {seat.slots} runner slots of {seat.name} are taken")
        if short > 0 or not seat.has_slot:
            shortages.append(Shortage(seat.node, max(0, short)))
    refusal = Refusal(
        reason="no_capacity",
        message=(
            f"{placed.card.model} needs {bill_text(placed.whole)}; over {len(placed.ranks)} nodes "
            + "; ".join(words)
        ),
        retry_after_s=BUSY_RETRY_S,
        facts={
            "need_bytes": placed.whole.total,
            "nodes": [rank.copy.seat.node for rank in placed.ranks],
            "short_bytes": sum(one.short_bytes for one in shortages),
        },
    )
    return Crowded(tuple(shortages), refusal)


def impossible(ground: Ground) -> Refusal:
    """More than all nodes that may be used could ever give, alone or together."""
    best = max(ground.copies, key=lambda one: (one.seat.ceiling_bytes, one.seat.node))
    seat, need = best.seat, best.load.whole
    text = (
        f"{ground.wish.model} needs {bill_text(need)}, more than the {gb(seat.ceiling_bytes)} GB "
        f"that models may ever take on {seat.name} ({_ceiling_text(seat)})"
    )
    if len(ground.copies) > 1:
        together = sum(one.seat.ceiling_bytes for one in ground.copies)
        text += (
            f"; and no group of at most {MAX_RANKS} of the {len(ground.copies)} nodes that may be "
            f"used holds it ({gb(together)} GB together, of which each rank takes 0.26 beside its "
            "share)"
        )
    text += _disks_text(ground)
    field = "model"
    if ground.wish.sharding or ground.wish.min_nodes > 1:
        field = "sharding" if ground.wish.sharding else "min_nodes"
    return Refusal(
        reason="insufficient_memory", message=text, field=field, facts=_facts(seat, need)
    )


def no_group(ground: Ground, kind: Kind, size: int) -> Refusal:
    """Memory or slots forbid a group of this kind and size now."""
    refused = unsupported_kind(ground, kind, size)
    if refused is not None:
        return refused
    rooms = sorted(
        (one.seat.usable_bytes for one in ground.copies if one.seat.has_slot), reverse=True
    )[:size]
    copy = ground.copies[0]
    if len(rooms) < size:
        text = f"{len(rooms)} nodes have a free runner slot and can run it"
    elif kind == "tensor":
        need = copy.load.slice(size, splits_kv=copy.card.tensor_splits_kv)
        text = (
            f"each of {size} ranks needs {bill_text(need)}; node number {size} by room gives "
            f"{gb(rooms[-1])} GB"
        )
    else:
        text = (
            f"it needs {bill_text(copy.load.whole)} (and 0.26 for each further rank); the roomiest "
            f"{size} nodes that compute alike give {gb(sum(rooms))} GB now"
        )
    return Refusal(
        reason="no_capacity",
        message=f"{ground.wish.model} as a {kind} group of {size}: {text}",
        retry_after_s=BUSY_RETRY_S,
        facts={"usable_bytes": sum(rooms), "nodes": len(rooms)},
    )


def _disks_text(ground: Ground) -> str:
    """Which nodes can be no more than a stage of a pipeline, for want of disk."""
    small = [
        f"{one.seat.name} {gb(one.disk_bytes)} GB"
        for one in ground.copies
        if one.disk_bytes is not None
    ]
    return f"; of its files the disks take no more than: {', '.join(small)}" if small else ""


def _ceiling_text(seat: Seat) -> str:
    if seat.limit_bytes is not None:
        return f"what its device recommends, of {gb(seat.memory_bytes)} GB"
    return f"{MEMORY_SHARE:.0%} of {gb(seat.memory_bytes)} GB"


def _seat_text(seat: Seat) -> str:
    return (
        f"{gb(seat.free_bytes or 0)} free, {gb(seat.loading_bytes)} of it promised to models "
        f"that are loading; {gb(seat.reserved_bytes)} of at most {gb(seat.ceiling_bytes)} "
        "reserved"
    )


def _facts(seat: Seat, need: Need) -> dict[str, Any]:
    return {
        "node": seat.node,
        "need_bytes": need.total,
        "weights_bytes": need.weights,
        "kv_bytes": need.kv,
        "context_tokens": need.context_tokens,
        "usable_bytes": seat.usable_bytes,
        "free_bytes": seat.free_bytes,
        "reserved_bytes": seat.reserved_bytes,
        "loading_bytes": seat.loading_bytes,
        "ceiling_bytes": seat.ceiling_bytes,
        "memory_bytes": seat.memory_bytes,
        "slots": seat.slots,
        "shards": seat.shards,
    }
