"""Finds the best placement of a model for each size and kind of group.

Pure. All ranks of a group use one engine and one number type, because their messages have one type.
Among nodes of equal speed, those with less to fetch win.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, permutations
from typing import Literal

from bus.wire.accelerators import DeviceShare
from bus.wire.cards import ModelCard
from bus.wire.instances import Sharding
from master.placement import memory_cost, pipeline_search
from master.placement.availability import Kind, LocalCopy, PlacementSpec, RoomOf, room_now
from master.placement.capacity import preference_rank
from master.placement.pipeline_search import Member, SearchSpace, TimedOrder
from master.placement.speed import Links, read_s_per_byte
from master.placement.split import fits
from master.placement.tensor_search import tensor_order

NEARLY_AS_FAST = 1.10
"""Placements that take up to this many times longer per token than the fastest count as equal."""
EXCHANGES = 16
"""Maximum number of attempts to exchange a member without weights for a node with them."""
MOST_PERMUTED = 6
"""Maximum number of nodes with parts of the model that are tried in every order."""
GROUP_ENGINE = "mlx-"


@dataclass(frozen=True, slots=True)
class PlacedRank:
    """One rank of a placement, with layers [first_layer, last_layer). Its memory in bytes: `need`
    is the minimum; `usable_bytes` is its node's; `devices` is the part of `reserved_bytes` on GPUs.
    `read_s` is its reading time for a token."""

    rank: int
    copy: LocalCopy
    first_layer: int
    last_layer: int
    need: memory_cost.MemoryCost
    reserved_bytes: int
    usable_bytes: int
    read_s: float
    devices: tuple[DeviceShare, ...] = ()

    @property
    def fetch_bytes(self) -> int:
        """Return how many bytes the rank must fetch before it can load: all files, or roughly the
        files of its layers."""
        copy, costs = self.copy, self.copy.costs
        if copy.has_layers(self.first_layer, self.last_layer):
            return 0
        is_whole = self.last_layer - self.first_layer == costs.layers
        if is_whole or not copy.card.fetched_in_parts:
            return copy.fetch_bytes
        size = copy.card.size_bytes
        return round(size * min(1.0, self.need.weights / max(1, costs.whole_weights)))


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of one instance: its ranks, context and predicted seconds per token.

    `ranks` are in order; in a pipeline rank 0 has the last layers. `whole` is the cost of the whole
    model on one node.
    """

    card: ModelCard
    sharding: Sharding
    collectives: Literal["ring", "jaccl"]
    ranks: tuple[PlacedRank, ...]
    context_tokens: int
    token_s: float
    whole: memory_cost.MemoryCost

    @property
    def tokens_per_s(self) -> float:
        """Return the predicted tokens per second of one stream."""
        return 1.0 / self.token_s if self.token_s > 0 else 0.0

    @property
    def lead(self) -> PlacedRank:
        """Return rank 0, which serves the requests."""
        return self.ranks[0]

    @property
    def fetch_bytes(self) -> int:
        """Return the bytes that all ranks together fetch before loading."""
        return sum(rank.fetch_bytes for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """The input of a search: the model and its conditions, the nodes that could run it (`copies`),
    sizing and links.

    `copies` is not empty. `blocked` has the names of all other nodes, each with the reason against
    it.
    """

    spec: PlacementSpec
    copies: tuple[LocalCopy, ...]
    blocked: Mapping[str, str]
    sizing: memory_cost.RunnerSizing
    links: Links

    @property
    def card(self) -> ModelCard:
        """Return the model's card from a node with the weights, else from any node."""
        return next((copy.card for copy in self.copies if copy.has_weights), self.copies[0].card)


def best_single(problem: PlacementProblem) -> Placement | None:
    """Return the placement of the whole model on the best node now; None if it fits on no node.

    Nodes with the weights go first, then nodes with the backend that the card prefers. Among these
    and nearly the fastest, the node with most memory wins.
    """
    fitting = [copy for copy in problem.copies if copy.fits_whole(room_now)]
    if not fitting:
        return None
    ranked = min(
        (not copy.has_weights, preference_rank(copy.card, copy.backend)) for copy in fitting
    )
    fitting = [
        copy
        for copy in fitting
        if (not copy.has_weights, preference_rank(copy.card, copy.backend)) == ranked
    ]
    least = min(copy.token_s for copy in fitting)
    near = [copy for copy in fitting if copy.token_s <= NEARLY_AS_FAST * least]
    chosen = max(near, key=lambda copy: (copy.node.usable_bytes, copy.node.id))
    return place_single(problem, chosen)


def place_single(problem: PlacementProblem, copy: LocalCopy) -> Placement:
    """Return the placement of the whole model on one node, without checking whether it fits into
    the node's memory."""
    whole = TimedOrder((), (0, copy.costs.layers), copy.token_s)
    return _place_in_order(problem, [copy], whole)


def best_group(problem: PlacementProblem, kind: Kind, size: int, room: RoomOf) -> Placement | None:
    """Return the fastest group of one kind and size among nodes that compute alike, or None."""
    placements: list[Placement] = []
    for copies in _compatible_copies(problem.copies):
        if why_unshardable(copies[0].card, kind, size) is None:
            placed = _group(problem, copies, kind, size, room)
            if placed is None and kind == "pipeline":
                placed = _group_from_disks(problem, copies, size, room)
            if placed is not None:
                placements.append(placed)
    return min(placements, key=lambda placement: placement.token_s, default=None)


def place_manual_split(
    problem: PlacementProblem, copies: Sequence[LocalCopy], counts: Sequence[int], room: RoomOf
) -> Placement | None:
    """Return the placement with counts[i] layers on the node copies[i]; None if it does not fit."""
    if len(copies) == 1:
        return place_single(problem, copies[0]) if copies[0].fits_whole(room) else None
    bounds = [sum(counts[:stage]) for stage in range(len(counts) + 1)]
    copies = [
        replace(copy, disk_bytes=None) if copy.has_layers(first, last) else copy
        for copy, first, last in zip(copies, bounds[:-1], bounds[1:], strict=True)
    ]
    space = _search_space(problem, copies, room)
    if not fits(space.costs, bounds, [member.room for member in space.members]):
        return None
    order = pipeline_search.time_split(space, range(len(copies)), bounds)
    return _place_in_order(problem, copies, order)


def fastest_of(candidates: Iterable[Placement]) -> Placement | None:
    """Return the best of some placements of one size; None if there are none.

    Among those nearly as fast as the fastest, the placement with least to fetch wins; if equal, a
    pipeline goes before a tensor group.
    """
    placements = list(candidates)
    if not placements:
        return None
    least = min(placement.token_s for placement in placements)
    near = [placement for placement in placements if placement.token_s <= NEARLY_AS_FAST * least]
    return min(
        near,
        key=lambda placement: (
            placement.fetch_bytes,
            placement.sharding != "pipeline",
            placement.token_s,
        ),
    )


def why_unshardable(card: ModelCard, kind: Kind, size: int) -> str | None:
    """Return why the model does not support a group of this kind and size; None if it does."""
    if kind == "pipeline":
        if card.unsplit_because:
            return f"{card.family} does not support pipelines: {card.unsplit_because}"
        if size > card.layers:
            return f"{size} stages are too many: {card.model} has {card.layers} layers"
        return None
    if not card.tensor_sizes:
        return f"{card.family} does not support tensor parallelism"
    for name, count in card.tensor_sizes.items():
        if count % size:
            return f"the model's {count} {name} are not divisible by {size}"
    return None


# --- groups ---


def _compatible_copies(copies: Sequence[LocalCopy]) -> list[list[LocalCopy]]:
    """Return sets of nodes that can form a group: they have MLX's engine, one number type and the
    same files."""
    by_key: dict[tuple[str, ...], list[LocalCopy]] = {}
    for copy in copies:
        if copy.backend.startswith(GROUP_ENGINE):
            by_key.setdefault(copy.group_key, []).append(copy)
    return list(by_key.values())


def _search_space(
    problem: PlacementProblem, copies: Sequence[LocalCopy], room: RoomOf
) -> SearchSpace:
    rooms = _divide_by_machine(copies, [copy.stage_room(room) for copy in copies])
    members = [
        Member(copy.node, share, read_s_per_byte(copy.node, copy.backend))
        for copy, share in zip(copies, rooms, strict=True)
    ]
    return SearchSpace(_largest_costs(copies), members, problem.links)


def _divide_by_machine(copies: Sequence[LocalCopy], bytes_: Sequence[int]) -> list[int]:
    """Return each node's bytes divided by the number of nodes on its machine, which share its
    memory."""
    machines = [copy.node.machine_id for copy in copies]
    crowd = Counter(machines)
    return [each // crowd[machine] for machine, each in zip(machines, bytes_, strict=True)]


def _largest_costs(copies: Sequence[LocalCopy]) -> memory_cost.LayerCosts:
    """Return the largest costs on any of these nodes, because their cards may differ."""
    distinct = {id(copy.costs): copy.costs for copy in copies}
    return max(distinct.values(), key=lambda costs: costs.whole.total)


def _group(
    problem: PlacementProblem, copies: Sequence[LocalCopy], kind: Kind, size: int, room: RoomOf
) -> Placement | None:
    roomy = [
        copy
        for copy in copies
        if copy.stage_room(room) > 0 and (kind == "pipeline" or copy.disk_bytes is None)
    ]
    if len(roomy) < size:
        return None
    space = _search_space(problem, roomy, room)
    if kind == "pipeline":
        order = pipeline_search.pipeline_order(space, size)
    else:
        order = tensor_order(space, size, splits_kv=roomy[0].card.tensor_splits_kv)
    if order is None:
        return None
    by_node = {copy.node.id: copy for copy in roomy}
    placed = _place_in_order(problem, [by_node[m.node.id] for m in order.members], order)
    return _prefer_weights(problem, placed, roomy, room) if kind == "pipeline" else placed


def _place_in_order(
    problem: PlacementProblem, copies: Sequence[LocalCopy], order: TimedOrder
) -> Placement:
    """Return the placement of the members of an order. If the order has bounds (the layers at which
    stages begin and end), this is a pipeline or one node, else a tensor group."""
    costs, size = _largest_costs(copies), len(copies)
    shares = _divide_by_machine(copies, [copy.node.usable_bytes for copy in copies])
    ranks: list[PlacedRank] = []
    for place, (copy, usable) in enumerate(zip(copies, shares, strict=True)):
        if order.bounds:
            first, last = order.bounds[place : place + 2]
            need, read_bytes = costs.stage_cost(first, last), copy.costs.read_bytes_of(first, last)
        else:
            first, last = 0, costs.layers
            need = costs.tensor_rank_cost(size, splits_kv=copies[0].card.tensor_splits_kv)
            read_bytes = 1 / size * copy.costs.active[-1] + copy.costs.head
        share = min(1.0, need.weights / max(1, copy.costs.whole_weights))
        headroom = memory_cost.headroom_bytes(need, usable, problem.sizing, share)
        rank = PlacedRank(
            rank=size - 1 - place if order.bounds else place,
            copy=copy,
            first_layer=first,
            last_layer=last,
            need=need,
            reserved_bytes=need.total + headroom,
            usable_bytes=usable,
            read_s=read_bytes * read_s_per_byte(copy.node, copy.backend),
            devices=copy.node.shares(need.total + headroom),
        )
        ranks.append(rank)
    ranks.sort(key=lambda rank: rank.rank)
    lead = ranks[0].copy
    context = lead.costs.context_tokens
    if problem.spec.context_tokens is None:
        held = partial(memory_cost.longest_context, lead.card)
        context = min(held(r.need, r.reserved_bytes - r.need.total) for r in ranks)
    return Placement(
        card=lead.card,
        sharding="none" if size == 1 else "pipeline" if order.bounds else "tensor",
        collectives="jaccl" if order.mesh else "ring",
        ranks=tuple(ranks),
        context_tokens=context,
        token_s=order.token_s,
        whole=lead.costs.whole,
    )


def _prefer_weights(
    problem: PlacementProblem, placed: Placement, roomy: Sequence[LocalCopy], room: RoomOf
) -> Placement:
    """Return the pipeline after members that must fetch weights were exchanged for nodes that have
    them, as long as the pipeline stays nearly as fast."""
    slowest_s, tries = NEARLY_AS_FAST * placed.token_s, EXCHANGES
    for place in range(len(placed.ranks)):
        if placed.ranks[place].copy.has_weights:
            continue
        taken = {rank.copy.node.id for rank in placed.ranks}
        others = [copy for copy in roomy if copy.has_weights and copy.node.id not in taken]
        others.sort(key=lambda copy: (copy.token_s, -room(copy.node)))
        for other in others[: min(tries, EXCHANGES // 4)]:
            tries -= 1
            copies = [rank.copy for rank in reversed(placed.ranks)]
            copies[len(copies) - 1 - place] = other
            space = _search_space(problem, copies, room)
            order = pipeline_search.split_and_time(space, range(len(copies)))
            if order is not None and order.token_s <= slowest_s:
                placed = _place_in_order(problem, copies, order)
                break
    return placed


def _group_from_disks(
    problem: PlacementProblem, copies: Sequence[LocalCopy], size: int, room: RoomOf
) -> Placement | None:
    """Return a pipeline of the layers that are already on disks, in the first order that fits."""
    if all(copy.partial is None for copy in copies):
        return None
    stored = [replace(copy, disk_bytes=None) for copy in copies if copy.partial or copy.has_weights]
    by_layers = sorted(stored, key=_first_on_disk)
    orders = [by_layers] if len(stored) == size else []
    for order in (*orders, *permutations(stored[:MOST_PERMUTED], size)):
        rooms = _divide_by_machine(order, [copy.stage_room(room) for copy in order])
        bounds, layers = [0], order[0].costs.layers
        for stage, copy in enumerate(order):
            most = layers - (size - 1 - stage)
            bounds.append(_farthest_on_disk(copy, bounds[-1], most, rooms[stage]))
        if bounds[-1] == layers and all(a < b for a, b in pairwise(bounds)):
            return place_manual_split(problem, order, [b - a for a, b in pairwise(bounds)], room)
    return None


def _first_on_disk(copy: LocalCopy) -> int:
    return 0 if copy.partial is None else min(first for first, _ in copy.partial.layers)


def _farthest_on_disk(copy: LocalCopy, first: int, most: int, room: int) -> int:
    """Return the end (exclusive, at most `most`) of the longest stage that can begin with layer
    `first`. The stage's layers must be on the node's disk and fit into `room`. Return `first` if
    not even one layer fits."""
    last = first
    while (
        last < most
        and copy.has_layers(first, last + 1)
        and copy.costs.stage_cost(first, last + 1).total <= room
    ):
        last += 1
    return last
