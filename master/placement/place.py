"""Where a model fits and how fast it will be there, by arithmetic; and why not, with the numbers.

Pure, and polynomial in nodes. The smallest number of nodes that is enough wins, and among those
of one number the fastest by prediction (`master.placement.speed`): one node while one is enough,
then a pipeline or, where the family shards and the sizes divide, a tensor-parallel group. Nodes
that have the weights come before those that would have to fetch them, where that costs no more than
a tenth of the speed. What a rank costs is in `master.placement.memory_cost`, what a node can give
in `master.placement.capacity`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from master.placement.availability import Copy, Kind, Room, Wish, find_copies, room_ever, room_now
from master.placement.capacity import Seat
from master.placement.explain import (
    Crowded,
    crowded_group,
    crowded_seat,
    impossible,
    no_group,
    nobody_can_run,
    refused_early,
    unmeasured,
    unsupported_kind,
)
from master.placement.memory_cost import Appetite
from master.placement.pipeline_search import MAX_RANKS
from master.placement.search import (
    Ground,
    Placement,
    best_group,
    best_of,
    best_single,
    by_hand,
)
from master.placement.speed import Links

PREVIEWS, PREVIEWS_OF_MANY, MANY_NODES = 8, 3, 64
"""Sizes that previews tell of; fewer of them in a cluster of more than `MANY_NODES`."""

_KINDS: tuple[Kind, ...] = ("pipeline", "tensor")

Verdict = Placement | Crowded | Refusal


def place(wish: Wish, nodes: Sequence[Seat], appetite: Appetite, links: Links) -> Verdict:
    """The best placement of one copy, or why there is none.

    A refusal of reason `insufficient_memory` or `unsupported` cannot be cured by waiting;
    `pending` and `no_capacity` carry `retry_after_s`.
    """
    ground = survey(wish, nodes, appetite, links)
    if isinstance(ground, Refusal):
        return ground
    if wish.layers:
        return _place_by_hand(ground)
    if not any(one.seat.free_bytes is not None for one in ground.copies):
        return unmeasured()
    for size in _sizes(ground):
        found = best_of(_of_size(ground, size, room_now))
        if found is not None:
            return found
    return _crowded(ground) or _never(ground)


def survey(wish: Wish, nodes: Sequence[Seat], appetite: Appetite, links: Links) -> Ground | Refusal:
    """What there is to choose from. Nodes may be named by id or by name."""
    excluded = set(wish.excluded_nodes)
    allowed = [seat for seat in nodes if not excluded & {seat.node, NodeId(seat.name)}]
    early = refused_early(wish, nodes, allowed)
    if early is not None:
        return early
    copies, blocked = find_copies(wish, allowed, nodes)
    if not copies:
        return nobody_can_run(wish.model, blocked)
    return Ground(wish, copies, blocked, appetite, links)


def candidates(
    ground: Ground, chosen: int
) -> Iterator[tuple[int, Kind | None, Placement | Refusal]]:
    """Each size and kind (None: one node) with its best placement now, or why there is none.

    Sizes are bounded, for the holder must not be kept from its heartbeat; the size that was
    `chosen` is among them.
    """
    most = PREVIEWS if len(ground.copies) <= MANY_NODES else PREVIEWS_OF_MANY
    sizes = {*range(1, min(len(ground.copies), ground.card.layers, most) + 1), chosen}
    for size in sorted(sizes):
        if size == 1:
            found = best_single(ground)
            yield 1, None, found if found is not None else _no_single(ground)
            continue
        for kind in _KINDS:
            placed = best_group(ground, kind, size, room_now)
            yield size, kind, placed if placed is not None else no_group(ground, kind, size)


def _sizes(ground: Ground) -> range:
    least = max(ground.wish.min_nodes, 2 if ground.wish.sharding else 1)
    return range(least, min(len(ground.copies), MAX_RANKS) + 1)


def _of_size(ground: Ground, size: int, room: Room) -> Iterator[Placement]:
    if size == 1:
        found = best_single(ground)
        if found is not None:
            yield found
        return
    kinds = (ground.wish.sharding,) if ground.wish.sharding else _KINDS
    for kind in kinds:
        placed = best_group(ground, kind, size, room)
        if placed is not None:
            yield placed


def _crowded(ground: Ground) -> Crowded | Refusal | None:
    """The node, else the group, that lacks least of what it would take. With unmeasured nodes
    that could hold it, the answer is to wait for their readings."""
    if 1 in _sizes(ground):
        singles = [one for one in ground.copies if one.holds_whole(room_ever)]
        measured = [one for one in singles if one.seat.free_bytes is not None]
        if measured:
            model = ground.wish.model
            found = [crowded_seat(model, one.seat, one.load.whole) for one in measured]
            return min(found, key=lambda one: (one.short_bytes, one.shortages[0].node))
        if singles:
            return unmeasured()
    for size in _sizes(ground):
        if size == 1:
            continue
        placed = best_of(_of_size(ground, size, room_ever))
        if placed is not None:
            if any(rank.copy.seat.free_bytes is None for rank in placed.ranks):
                return unmeasured()
            return crowded_group(placed)
    return None


def _never(ground: Ground) -> Refusal:
    sizes = _sizes(ground)
    if sizes and sizes[0] > 1:
        kinds = (ground.wish.sharding,) if ground.wish.sharding else _KINDS
        refused = [unsupported_kind(ground, kind, size) for size in sizes for kind in kinds]
        if all(refused):
            return next(one for one in refused if one is not None)
    if not sizes:
        return nobody_can_run(ground.wish.model, dict(ground.blocked))
    return impossible(ground)


def _no_single(ground: Ground) -> Refusal:
    found = _crowded(replace(ground, wish=replace(ground.wish, sharding=None, min_nodes=1)))
    if isinstance(found, Refusal):
        return found
    if found is not None and len(found.shortages) == 1:
        return found.refusal
    return impossible(replace(ground, copies=ground.copies[:1]))


def _place_by_hand(ground: Ground) -> Verdict:
    order = _named(ground)
    if isinstance(order, Refusal):
        return order
    counts = list(ground.wish.layers.values())
    total, layers = sum(counts), ground.card.layers
    if total != layers or min(counts) < 1:
        return _bad_layers(
            f"{ground.wish.model} has {layers} layers and {total} were given out; each node named "
            "gets at least one"
        )
    if len(order) > 1:
        refused = unsupported_kind(ground, "pipeline", len(order))
        if refused is not None:
            return refused
        if len({one.kin for one in order}) > 1:
            return _bad_layers(
                "these nodes do not compute alike (CPUs in 32 bits, others as stored) or hold "
                "other files under that name"
            )
    if any(one.seat.free_bytes is None for one in order):
        return unmeasured()
    placed = by_hand(ground, order, counts, room_now)
    if placed is not None:
        return placed
    placed = by_hand(ground, order, counts, room_ever)
    return impossible(ground) if placed is None else crowded_group(placed)


def _named(ground: Ground) -> list[Copy] | Refusal:
    """The nodes of a manual split, by id or name, in its order."""
    order: list[Copy] = []
    for name in ground.wish.layers:
        meant = [one for one in ground.copies if one.seat.node == name]
        meant = meant or [one for one in ground.copies if one.seat.name == name]
        if len(meant) != 1:
            there = ", ".join(sorted(f"{o.seat.node} ({o.seat.name})" for o in ground.copies))
            many = "is no node" if not meant else f"are {len(meant)} nodes"
            return _bad_layers(f"{name} {many} that may be used; there is: {there}")
        order.append(meant[0])
    if len({one.seat.node for one in order}) < len(order):
        return _bad_layers("a node is named twice")
    return order


def _bad_layers(text: str) -> Refusal:
    return Refusal(reason="bad_request", message=f"layers: {text}", field="layers")
