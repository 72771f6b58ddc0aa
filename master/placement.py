"""Where a model fits, by arithmetic that can be read back; and why not, with the numbers.

Pure, and polynomial in nodes. A node can give

    usable = min(what is free, 0.75 x its memory - what is reserved there)

where "free" is measured, less the reservations of shards that are still loading. A model needs

    weights x 1.30 + KV for the context promised + 256 MB

at least. What it is given beyond that (for more rows and its prefix cache) is at most a
quarter of what then remains. The context that was promised is stamped on the instance and
read from there by every rank and gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.cards import ModelCard, NodeCard
from bus.errors import Refusal
from bus.ids import ModelId, NodeId
from bus.instances import Instance
from bus.messages.readings import NodeReading

WEIGHTS_OVERHEAD = 1.30
FIXED_BYTES = 256_000_000
PROMISED_TOKENS = 8_192
MEMORY_SHARE = 0.75
ROOM_SHARE = 0.25
PENDING_RETRY_S = 2.0
BUSY_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be placed, and under which conditions."""

    model: ModelId
    context_tokens: int | None = None
    excluded_nodes: tuple[NodeId, ...] = ()
    min_nodes: int = 1


@dataclass(frozen=True, slots=True)
class Appetite:
    """What a runner makes use of, beyond the least that it needs."""

    max_rows: int = 32
    prefix_cache_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class Seat:
    """A node as placement sees it. `free_bytes` None: nothing was measured yet."""

    node: NodeId
    name: str
    memory_bytes: int
    free_bytes: int | None
    reserved_bytes: int
    loading_bytes: int
    slots: int
    shards: int
    backend: str
    models: tuple[ModelCard, ...]

    @property
    def ceiling_bytes(self) -> int:
        """What models may take here in all."""
        return int(MEMORY_SHARE * self.memory_bytes)

    @property
    def usable_bytes(self) -> int:
        """What one more model may take now."""
        by_share = self.ceiling_bytes - self.reserved_bytes
        if self.free_bytes is None:
            return 0
        return max(0, min(self.free_bytes - self.loading_bytes, by_share))


@dataclass(frozen=True, slots=True)
class Need:
    """The bill. All in bytes."""

    weights: int
    weights_with_overhead: int
    kv: int
    fixed: int
    context_tokens: int

    @property
    def total(self) -> int:
        return self.weights_with_overhead + self.kv + self.fixed


@dataclass(frozen=True, slots=True)
class Placement:
    """It fits: where, with how much, for which context."""

    card: ModelCard
    node: NodeId
    backend: str
    need: Need
    reserved_bytes: int
    usable_bytes: int
    context_tokens: int

    def plan(self) -> dict[str, Any]:
        """For people and `--dry-run`."""
        return {
            "model": self.card.model,
            "node": self.node,
            "backend": self.backend,
            "context_tokens": self.context_tokens,
            "need_bytes": self.need.total,
            "reserved_bytes": self.reserved_bytes,
            "usable_bytes": self.usable_bytes,
            "arithmetic": bill_text(self.need),
        }


@dataclass(frozen=True, slots=True)
class Crowded:
    """It would fit on `node` if others made way: `short_bytes` are missing, or a slot is."""

    node: NodeId
    short_bytes: int
    refusal: Refusal


Verdict = Placement | Crowded | Refusal


def seats(
    cards: Mapping[NodeId, NodeCard],
    readings: Mapping[NodeId, NodeReading],
    instances: Mapping[str, Instance],
) -> list[Seat]:
    """Every node that has announced itself, with what is promised there already.

    A shard that is not ready counts as still loading: what it reserved is not yet measured.
    """
    found: list[Seat] = []
    for node, card in sorted(cards.items()):
        reserved = loading = shards = 0
        for instance in instances.values():
            if instance.status == "failed":
                continue
            ready = {rank.rank for rank in instance.ready}
            for shard in instance.shards:
                if shard.node == node:
                    shards += 1
                    reserved += shard.bytes_reserved
                    loading += 0 if shard.rank in ready else shard.bytes_reserved
        reading = readings.get(node)
        found.append(
            Seat(
                node=node,
                name=card.name,
                memory_bytes=card.memory_bytes,
                free_bytes=None if reading is None else reading.memory_available_bytes,
                reserved_bytes=reserved,
                loading_bytes=loading,
                slots=card.slots,
                shards=shards,
                backend=next(iter(card.backends), "mlx-cpu"),
                models=card.models,
            )
        )
    return found


def bill(card: ModelCard, context_tokens: int | None) -> Need:
    """What one copy needs at least. The context promised is what was asked for, else 8,192
    tokens, and never more than the model was made for."""
    promised = min(context_tokens or PROMISED_TOKENS, card.context_tokens)
    return Need(
        weights=card.weights_bytes,
        weights_with_overhead=int(card.weights_bytes * WEIGHTS_OVERHEAD),
        kv=promised * card.kv_bytes_per_token + card.kv_bytes_fixed,
        fixed=FIXED_BYTES,
        context_tokens=promised,
    )


def place(wish: Wish, nodes: Sequence[Seat], appetite: Appetite) -> Verdict:
    """The best single node for one copy, or why there is none.

    Best: the most usable memory. A refusal of reason `insufficient_memory` or `unsupported`
    cannot be cured by waiting; `pending` and `no_capacity` carry `retry_after_s`.
    """
    allowed = [seat for seat in nodes if seat.node not in wish.excluded_nodes]
    early = _refused_early(wish, nodes, allowed)
    if early is not None:
        return early
    fitting: list[tuple[int, Seat, ModelCard, Need]] = []
    crowded: list[Crowded] = []
    impossible: list[tuple[Seat, Need]] = []
    for seat in allowed:
        card = next((one for one in seat.models if one.model == wish.model), None)
        if card is None:
            continue
        need = bill(card, wish.context_tokens)
        if need.total > seat.ceiling_bytes:
            impossible.append((seat, need))
        elif need.total > seat.usable_bytes or seat.shards >= seat.slots:
            crowded.append(_crowded(wish.model, seat, need))
        else:
            fitting.append((seat.usable_bytes, seat, card, need))
    if fitting:
        usable, seat, card, need = max(fitting, key=lambda fit: (fit[0], fit[1].node))
        room = _room(card, need, usable, appetite)
        return Placement(
            card=card,
            node=seat.node,
            backend=seat.backend,
            need=need,
            reserved_bytes=need.total + room,
            usable_bytes=usable,
            context_tokens=_context(wish, card, need, room),
        )
    if crowded:
        return min(crowded, key=lambda one: (one.short_bytes, one.node))
    return _impossible(wish.model, impossible)


def bill_text(need: Need) -> str:
    """`1.5 GB = weights 1.0 x 1.30 + KV 0.0 for 8,192 tokens + 0.26`."""
    return (
        f"{_gb(need.total)} GB = weights {_gb(need.weights)} x {WEIGHTS_OVERHEAD:.2f} + "
        f"KV {_gb(need.kv)} for {need.context_tokens:,} tokens + {_gb(need.fixed)}"
    )


def _refused_early(wish: Wish, nodes: Sequence[Seat], allowed: Sequence[Seat]) -> Refusal | None:
    if not nodes:
        return Refusal(
            reason="pending",
            message="no node has announced itself yet; the cluster is still starting",
            retry_after_s=PENDING_RETRY_S,
        )
    if wish.context_tokens is not None:
        longest = [c.context_tokens for s in allowed for c in s.models if c.model == wish.model]
        if longest and wish.context_tokens > max(longest):
            return Refusal(
                reason="unsupported",
                message=(
                    f"{wish.model} was made for {max(longest):,} tokens of context, "
                    f"{wish.context_tokens:,} were asked for"
                ),
                field="context_tokens",
                facts={"context_tokens": max(longest)},
            )
    if not any(card.model == wish.model for seat in nodes for card in seat.models):
        return Refusal(
            reason="unknown_model",
            message=f"{wish.model} is on no node's disk; to get it: `shoal pull {wish.model}`",
            field="model",
        )
    if wish.min_nodes > 1:
        return Refusal(
            reason="unsupported",
            message=f"min_nodes {wish.min_nodes}: a model is placed on one node in this version",
            field="min_nodes",
            facts={"nodes": len(allowed)},
        )
    if not any(card.model == wish.model for seat in allowed for card in seat.models):
        return Refusal(
            reason="no_capacity",
            message=f"every node that has {wish.model} on its disk is excluded",
            field="excluded_nodes",
        )
    measured = [s for s in allowed if s.free_bytes is not None]
    if not any(card.model == wish.model for seat in measured for card in seat.models):
        return Refusal(
            reason="pending",
            message="no memory reading has come yet; is `telemetry` running?",
            retry_after_s=PENDING_RETRY_S,
        )
    return None


def _room(card: ModelCard, need: Need, usable: int, appetite: Appetite) -> int:
    """Bytes beyond the least: for as many rows as a runner takes, and its prefix cache."""
    rows = appetite.max_rows * (need.context_tokens * card.kv_bytes_per_token + card.kv_bytes_fixed)
    wanted = max(0, rows + appetite.prefix_cache_bytes - need.kv)
    return min(wanted, int(ROOM_SHARE * (usable - need.total)))


def _context(wish: Wish, card: ModelCard, need: Need, room: int) -> int:
    """The limit that is stamped: what was asked for, else as long as the model was made for
    and half of what it gets for KV can hold."""
    if wish.context_tokens is not None or not card.kv_bytes_per_token:
        return need.context_tokens if wish.context_tokens is not None else card.context_tokens
    held = (need.kv + room) // 2 // card.kv_bytes_per_token
    return min(card.context_tokens, max(need.context_tokens, held))


def _crowded(model: ModelId, seat: Seat, need: Need) -> Crowded:
    if need.total <= seat.usable_bytes:
        text = f"{model} fits on {seat.name}, but its {seat.slots} runner slots are taken"
    else:
        text = (
            f"{model} needs {bill_text(need)}, and {seat.name} can give {_gb(seat.usable_bytes)} "
            f"GB now ({_seat_text(seat)})"
        )
    refusal = Refusal(
        reason="no_capacity",
        message=text,
        retry_after_s=BUSY_RETRY_S,
        facts=_facts(seat, need),
    )
    return Crowded(seat.node, max(0, need.total - seat.usable_bytes), refusal)


def _impossible(model: ModelId, found: Sequence[tuple[Seat, Need]]) -> Refusal:
    seat, need = max(found, key=lambda one: (one[0].ceiling_bytes, one[0].node))
    return Refusal(
        reason="insufficient_memory",
        message=(
            f"{model} needs {bill_text(need)}, more than the {_gb(seat.ceiling_bytes)} GB that "
            f"models may ever take on {seat.name} ({MEMORY_SHARE:.0%} of "
            f"{_gb(seat.memory_bytes)} GB)"
        ),
        field="model",
        facts=_facts(seat, need),
    )


def _seat_text(seat: Seat) -> str:
    return (
        f"{_gb(seat.free_bytes or 0)} free, {_gb(seat.loading_bytes)} of it promised to models "
        f"that are loading; {_gb(seat.reserved_bytes)} of at most {_gb(seat.ceiling_bytes)} "
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


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f}"
