"""Chooses the nodes of a model and predicts its speed, or explains with numbers why it fits
nowhere.

Pure, and polynomial in nodes. The smallest sufficient number of nodes wins; among equal numbers the
fastest placement by prediction (`master.placement.speed`). That is one node if it suffices, else a
pipeline, or a tensor-parallel group if the model's family can be sharded and the sizes divide.
Nodes with the weights go before nodes that must fetch them, if that costs at most a tenth of the
speed. `master.placement.memory_cost` computes the memory of a rank, `master.placement.capacity`
that of a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from master.placement import availability, explain, search
from master.placement.availability import Kind, LocalCopy, PlacementSpec, RoomOf
from master.placement.capacity import NodeCapacity
from master.placement.explain import Crowded
from master.placement.memory_cost import RunnerSizing
from master.placement.pipeline_search import MAX_RANKS
from master.placement.search import Placement, PlacementProblem
from master.placement.speed import Links

PREVIEWS, PREVIEWS_OF_MANY, MANY_NODES = 8, 3, 64
"""Number of group sizes in previews; fewer in a cluster of more than `MANY_NODES`."""

FETCHED_PER_S = 100e6
"""Assumed bytes per second of a fetch over the network, to compare placements."""

KINDS: tuple[Kind, ...] = ("pipeline", "tensor")

Verdict = Placement | Crowded | Refusal


def place(
    spec: PlacementSpec, nodes: Sequence[NodeCapacity], sizing: RunnerSizing, links: Links
) -> Verdict:
    """Return the best placement of one instance, or why there is none.

    Waiting cannot help if the reason is `insufficient_memory` or `unsupported`; refusals with
    `pending` and `no_capacity` have `retry_after_s`.
    """
    problem = placement_problem(spec, nodes, sizing, links)
    if isinstance(problem, Refusal):
        return problem
    if spec.layers:
        return _place_manual_split(problem)
    if not any(copy.node.free_bytes is not None for copy in problem.copies):
        return explain.unmeasured()
    for size in _sizes(problem):
        placement = search.fastest_of(_of_size(problem, size, availability.room_now))
        if placement is not None:
            return placement
    return _crowded(problem) or explain.mended_later(_never_fits(problem), nodes)


def placement_problem(
    spec: PlacementSpec, nodes: Sequence[NodeCapacity], sizing: RunnerSizing, links: Links
) -> PlacementProblem | Refusal:
    """Return the input of the search, with the nodes that could run the model; a refusal if there
    are none.

    `spec` may name nodes by id or by name.
    """
    excluded = set(spec.excluded_nodes)
    allowed = [node for node in nodes if not excluded & {node.id, NodeId(node.name)}]
    early = explain.refuse_early(spec, nodes, allowed)
    if early is not None:
        return early
    copies, blocked = availability.find_copies(spec, allowed, nodes)
    if not copies:
        return explain.mended_later(explain.no_node_can_run(spec.model, blocked), allowed)
    return PlacementProblem(spec, copies, blocked, sizing, links)


def single_costs(
    spec: PlacementSpec, nodes: Sequence[NodeCapacity], sizing: RunnerSizing, links: Links
) -> list[tuple[NodeCapacity, int, float]]:
    """Return (node, bytes of a whole instance, seconds to fetch its weights) for each node that
    could hold the model if all other instances were unloaded. The node's `home` names the GPUs that
    would hold the model (None: the machine's memory). Nodes without a memory reading are left
    out."""
    problem = placement_problem(spec, nodes, sizing, links)
    if isinstance(problem, Refusal):
        return []
    return [
        (copy.node, copy.costs.whole.total, copy.fetch_bytes / FETCHED_PER_S)
        for copy in problem.copies
        if copy.fits_whole(availability.room_ever) and copy.node.free_bytes is not None
    ]


def alternatives(
    problem: PlacementProblem, chosen: int
) -> Iterator[tuple[int, Kind | None, Placement | Refusal]]:
    """Yield each size and kind of group (None: a single node), with its best placement now or the
    refusal.

    Sizes rise. Their number is bounded, so that the leader can send its heartbeat in time; the
    `chosen` size is among them.
    """
    most = PREVIEWS if len(problem.copies) <= MANY_NODES else PREVIEWS_OF_MANY
    sizes = {*range(1, min(len(problem.copies), problem.card.layers, most) + 1), chosen}
    for size in sorted(sizes):
        if size == 1:
            yield 1, None, search.best_single(problem) or _no_single(problem)
            continue
        for kind in KINDS:
            placed = search.best_group(problem, kind, size, availability.room_now)
            yield size, kind, placed or explain.no_group(problem, kind, size)


def _sizes(problem: PlacementProblem) -> range:
    least = max(problem.spec.min_nodes, 2 if problem.spec.sharding else 1)
    return range(least, min(len(problem.copies), MAX_RANKS) + 1)


def _kinds(problem: PlacementProblem) -> tuple[Kind, ...]:
    return (problem.spec.sharding,) if problem.spec.sharding else KINDS


def _of_size(problem: PlacementProblem, size: int, room: RoomOf) -> list[Placement]:
    if size == 1:
        placements = [search.best_single(problem)]
    else:
        placements = [search.best_group(problem, kind, size, room) for kind in _kinds(problem)]
    return [placement for placement in placements if placement is not None]


def _crowded(problem: PlacementProblem) -> Crowded | Refusal | None:
    """Return the missing memory or slots (`Crowded`) on the node with the smallest shortage, among
    the nodes that could hold the model alone once they are empty. If no single node could, return
    what a group lacks; None if no group could hold the model either.

    If a node could hold the model but its memory is not measured yet, return the refusal that asks
    the client to wait for the measurement.
    """
    if 1 in _sizes(problem):
        singles = [copy for copy in problem.copies if copy.fits_whole(availability.room_ever)]
        measured = [copy for copy in singles if copy.node.free_bytes is not None]
        if measured:
            model = problem.spec.model
            crowded = [
                explain.crowded_node(model, copy.node, copy.costs.whole) for copy in measured
            ]
            return min(
                crowded, key=lambda candidate: (*candidate.shortages.values(), *candidate.shortages)
            )
        if singles:
            return explain.unmeasured()
    for size in _sizes(problem):
        if size == 1:
            continue
        placed = search.fastest_of(_of_size(problem, size, availability.room_ever))
        if placed is not None:
            if any(rank.copy.node.free_bytes is None for rank in placed.ranks):
                return explain.unmeasured()
            return explain.crowded_group(placed)
    return None


def _never_fits(problem: PlacementProblem) -> Refusal:
    if (in_parts := explain.only_in_parts(problem)) is not None:
        return in_parts
    sizes = _sizes(problem)
    if sizes and sizes[0] > 1:
        refused = [
            explain.unsupported_kind(problem, kind, size)
            for size in sizes
            for kind in _kinds(problem)
        ]
        if all(refused):
            return next(refusal for refusal in refused if refusal is not None)
    if not sizes:
        return explain.no_node_can_run(problem.spec.model, dict(problem.blocked))
    return explain.impossible(problem)


def _no_single(problem: PlacementProblem) -> Refusal:
    crowded = _crowded(replace(problem, spec=replace(problem.spec, sharding=None, min_nodes=1)))
    if isinstance(crowded, Refusal):
        return crowded
    if crowded is not None and len(crowded.shortages) == 1:
        return crowded.refusal
    if (in_parts := explain.only_in_parts(problem)) is not None:
        return in_parts
    return explain.impossible(replace(problem, copies=problem.copies[:1]))


def _place_manual_split(problem: PlacementProblem) -> Verdict:
    order = _named_copies(problem)
    if isinstance(order, Refusal):
        return order
    counts = list(problem.spec.layers.values())
    total, layers = sum(counts), problem.card.layers
    if total != layers or min(counts) < 1:
        return _bad_layers(
            f"{total} layers are assigned; {problem.spec.model} has {layers}, and each named "
            "node needs at least one"
        )
    if len(order) > 1:
        refused = explain.unsupported_kind(problem, "pipeline", len(order))
        if refused is not None:
            return refused
        if len({copy.group_key for copy in order}) > 1:
            return _bad_layers(
                "these nodes cannot form a group: they compute in different number types (CPUs in "
                "32 bits, others as stored), have different files of the model, or use "
                "different KV formats"
            )
    first = 0
    for copy, count in zip(order, counts, strict=True):
        if copy.is_part and copy.partial is not None and not copy.has_layers(first, first + count):
            return _bad_layers(
                f"{copy.node.name} holds {copy.partial.text}, not {first} to {first + count - 1}, "
                "and no node has all of them"
            )
        first += count
    if any(copy.node.free_bytes is None for copy in order):
        return explain.unmeasured()
    placed = search.place_manual_split(problem, order, counts, availability.room_now)
    if placed is not None:
        return placed
    placed = search.place_manual_split(problem, order, counts, availability.room_ever)
    return explain.impossible(problem) if placed is None else explain.crowded_group(placed)


def _named_copies(problem: PlacementProblem) -> list[LocalCopy] | Refusal:
    """Return the nodes of a split that the user chose (given by id or name), in its order; or a
    refusal."""
    order: list[LocalCopy] = []
    for name in problem.spec.layers:
        meant = [copy for copy in problem.copies if copy.node.id == name]
        meant = meant or [copy for copy in problem.copies if copy.node.name == name]
        if len(meant) != 1:
            there = ", ".join(sorted(f"{o.node.id} ({o.node.name})" for o in problem.copies))
            what = "names no available node" if not meant else f"names {len(meant)} nodes"
            return _bad_layers(f"{name} {what}; available nodes: {there}")
        order.append(meant[0])
    if len({copy.node.id for copy in order}) < len(order):
        return _bad_layers("a node is named twice; name each node once")
    return order


def _bad_layers(text: str) -> Refusal:
    return Refusal(reason="bad_request", message=f"layers: {text}", field="layers")
