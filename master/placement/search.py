"""What may hold a model: the best placement of each size and kind.

Pure. The ranks of a group all compute alike (one engine, one type of numbers), for what travels
between them has one type. Nodes of equal speed are told apart by what they would have to fetch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, permutations
from typing import Literal

from bus.wire.cards import ModelCard
from bus.wire.instances import Sharding
from master.placement.availability import Copy, Kind, Room, Wish, room_now
from master.placement.capacity import preference
from master.placement.memory_cost import Appetite, Layered, Need, context_held, room_bytes
from master.placement.pipeline_search import Field, Line, Member, line_of, pipeline_line, timed
from master.placement.speed import Links, read_s_per_byte
from master.placement.split import fits
from master.placement.tensor_search import tensor_line

NEAR = 1.10
"""Candidates whose tokens take up to this much longer count as equally fast."""
EXCHANGES = 16
"""How often a node with weights is tried in the place of a member that has none."""
MOST_HOLDERS = 6
"""Of nodes that hold parts, so many are tried in every order."""
GROUP_ENGINE = "mlx-"


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a placement. `read_s` is its share of a token's time."""

    rank: int
    copy: Copy
    first_layer: int
    last_layer: int
    need: Need
    reserved_bytes: int
    usable_bytes: int
    read_s: float

    @property
    def fetch_bytes(self) -> int:
        """What has to come over the network first: all of the files, or, about, its layers'."""
        copy, load = self.copy, self.copy.load
        if copy.has(self.first_layer, self.last_layer):
            return 0
        is_whole = self.last_layer - self.first_layer == load.layers
        if is_whole or not copy.card.fetched_in_parts:
            return copy.fetch_bytes
        size = copy.card.size_bytes
        return round(size * min(1.0, self.need.weights / max(1, load.whole_weights)))


@dataclass(frozen=True, slots=True)
class Placement:
    """It fits: where, with how much, for which context, and how fast it is expected to be.

    `ranks` in their order; in a pipeline rank 0 has the last layers.
    """

    card: ModelCard
    sharding: Sharding
    collectives: Literal["ring", "jaccl"]
    ranks: tuple[Rank, ...]
    context_tokens: int
    token_s: float
    whole: Need

    @property
    def tokens_per_s(self) -> float:
        """Of one stream, predicted."""
        return 1.0 / self.token_s if self.token_s > 0 else 0.0

    @property
    def lead(self) -> Rank:
        return self.ranks[0]

    @property
    def fetch_bytes(self) -> int:
        return sum(rank.fetch_bytes for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Ground:
    """All that a search looks at. `blocked` says of nodes why they cannot run the model."""

    wish: Wish
    copies: tuple[Copy, ...]
    blocked: Mapping[str, str]
    appetite: Appetite
    links: Links

    @property
    def card(self) -> ModelCard:
        """The model as one who has it on disk knows it."""
        return next((one.card for one in self.copies if one.has_weights), self.copies[0].card)


def best_single(ground: Ground) -> Placement | None:
    """The best node for a whole copy: one that has the weights, then one whose backend the card
    prefers, then the fastest, then the one with most room."""
    found = [one for one in ground.copies if one.holds_whole(room_now)]
    if not found:
        return None
    ranked = min((not one.has_weights, preference(one.card, one.backend)) for one in found)
    found = [o for o in found if (not o.has_weights, preference(o.card, o.backend)) == ranked]
    least = min(one.token_s for one in found)
    near = [one for one in found if one.token_s <= NEAR * least]
    chosen = max(near, key=lambda one: (one.seat.usable_bytes, one.seat.node))
    return single(ground, chosen)


def single(ground: Ground, copy: Copy) -> Placement:
    """A whole copy on one node."""
    usable = copy.seat.usable_bytes
    rank = _rank(ground, copy, 0, 0, copy.load.layers, copy.load.whole, usable=usable)
    return _placement(ground, "none", "ring", (rank,), copy.token_s)


def best_group(ground: Ground, kind: Kind, size: int, room: Room) -> Placement | None:
    """The fastest group of one kind and size that is found among nodes that compute alike."""
    found: list[Placement] = []
    for copies in _alike(ground.copies):
        if why_unshardable(copies[0].card, kind, size) is None:
            placed = _group(ground, copies, kind, size, room)
            if placed is None and kind == "pipeline":
                placed = _as_it_lies(ground, copies, size, room)
            if placed is not None:
                found.append(placed)
    return min(found, key=lambda one: one.token_s, default=None)


def by_hand(
    ground: Ground, order: Sequence[Copy], counts: Sequence[int], room: Room
) -> Placement | None:
    """What a manual split describes, or None where it does not fit."""
    if len(order) == 1:
        copy = order[0]
        return single(ground, copy) if copy.holds_whole(room) else None
    field_ = _field(ground, order, room)
    bounds = [sum(counts[:stage]) for stage in range(len(counts) + 1)]
    if not fits(field_.load, bounds, [one.room for one in field_.members]):
        return None
    return _pipeline(ground, order, line_of(field_, range(len(order)), bounds))


def best_of(found: Iterable[Placement]) -> Placement | None:
    """Of candidates of one size: the fastest, but for those nearly as fast the one that has to
    fetch least, a pipeline before a tensor group."""
    candidates = list(found)
    if not candidates:
        return None
    least = min(one.token_s for one in candidates)
    near = [one for one in candidates if one.token_s <= NEAR * least]
    return min(near, key=lambda one: (one.fetch_bytes, one.sharding != "pipeline", one.token_s))


def why_unshardable(card: ModelCard, kind: Kind, size: int) -> str | None:
    """Why the model itself forbids a group of this kind and size; None when it does not."""
    if kind == "pipeline":
        if card.unsplit_because:
            return f"{card.family} cannot be a pipeline: {card.unsplit_because}"
        if size > card.layers:
            return f"{size} stages, but {card.model} has {card.layers} layers"
        return None
    if not card.tensor_sizes:
        return f"{card.family} does not shard by tensors"
    for name, count in card.tensor_sizes.items():
        if count % size:
            return f"its {count} {name} do not divide by {size}"
    return None


# --- groups ---


def _alike(copies: Sequence[Copy]) -> list[list[Copy]]:
    """Nodes that can be ranks of one group: MLX's engine, one type of numbers, the same files."""
    alike: dict[tuple[str, ...], list[Copy]] = {}
    for one in copies:
        if one.backend.startswith(GROUP_ENGINE):
            alike.setdefault(one.kin, []).append(one)
    return list(alike.values())


def _field(ground: Ground, copies: Sequence[Copy], room: Room) -> Field:
    """Nodes of one machine share its memory, so each counts with its part of it in a group."""
    rooms = [one.stage_room(room) for one in copies]
    members = [
        Member(one.seat, share, read_s_per_byte(one.seat, one.backend))
        for one, share in zip(copies, _divided(copies, rooms), strict=True)
    ]
    return Field(_largest_load(copies), members, ground.links)


def _divided(copies: Sequence[Copy], bytes_: Sequence[int]) -> list[int]:
    crowd = Counter(one.seat.machine or one.seat.node for one in copies)
    return [
        each // crowd[one.seat.machine or one.seat.node]
        for one, each in zip(copies, bytes_, strict=True)
    ]


def _largest_load(copies: Sequence[Copy]) -> Layered:
    """A card that was taken over from another node may count more than one's own: the larger."""
    return max(
        {id(one.load): one.load for one in copies}.values(), key=lambda load: load.whole.total
    )


def _group(
    ground: Ground, copies: Sequence[Copy], kind: Kind, size: int, room: Room
) -> Placement | None:
    roomy = [
        one
        for one in copies
        if one.stage_room(room) > 0 and (kind == "pipeline" or one.disk_bytes is None)
    ]
    if len(roomy) < size:
        return None
    field_ = _field(ground, roomy, room)
    splits_kv = roomy[0].card.tensor_splits_kv
    line = (
        pipeline_line(field_, size)
        if kind == "pipeline"
        else tensor_line(field_, size, splits_kv=splits_kv)
    )
    if line is None:
        return None
    by_node = {one.seat.node: one for one in roomy}
    order = [by_node[member.seat.node] for member in line.members]
    if kind == "tensor":
        return _tensor(ground, order, line)
    return _with_weights(ground, _pipeline(ground, order, line), roomy, room)


def _pipeline(ground: Ground, order: Sequence[Copy], line: Line) -> Placement:
    size, load = len(order), _largest_load(order)
    shares = _divided(order, [one.seat.usable_bytes for one in order])
    ranks = [
        _rank(
            ground,
            copy,
            size - 1 - stage,
            line.bounds[stage],
            line.bounds[stage + 1],
            load.stage(line.bounds[stage], line.bounds[stage + 1]),
            usable=shares[stage],
        )
        for stage, copy in enumerate(order)
    ]
    how: Literal["ring", "jaccl"] = "jaccl" if line.mesh else "ring"
    return _placement(ground, "pipeline", how, tuple(reversed(ranks)), line.token_s)


def _tensor(ground: Ground, order: Sequence[Copy], line: Line) -> Placement:
    load, size = _largest_load(order), len(order)
    need = load.slice(size, splits_kv=order[0].card.tensor_splits_kv)
    shares = _divided(order, [one.seat.usable_bytes for one in order])
    ranks = tuple(
        _rank(ground, copy, number, 0, load.layers, need, usable=usable, share=1 / size)
        for number, (copy, usable) in enumerate(zip(order, shares, strict=True))
    )
    how: Literal["ring", "jaccl"] = "jaccl" if line.mesh else "ring"
    return _placement(ground, "tensor", how, ranks, line.token_s)


def _with_weights(
    ground: Ground, placed: Placement, roomy: Sequence[Copy], room: Room
) -> Placement:
    """Put nodes that have the weights into the places of members that would fetch them, where
    that leaves the group nearly as fast."""
    slowest, tries = NEAR * placed.token_s, EXCHANGES
    for place in range(len(placed.ranks)):
        if placed.ranks[place].copy.has_weights:
            continue
        taken = {rank.copy.seat.node for rank in placed.ranks}
        holders = [c for c in roomy if c.has_weights and c.seat.node not in taken]
        holders.sort(key=lambda one: (one.token_s, -room(one.seat)))
        for holder in holders[: min(tries, EXCHANGES // 4)]:
            tries -= 1
            order = [rank.copy for rank in reversed(placed.ranks)]
            order[len(order) - 1 - place] = holder
            line = _line_of(ground, order, room)
            if line is not None and line.token_s <= slowest:
                placed = _pipeline(ground, order, line)
                break
    return placed


def _as_it_lies(ground: Ground, copies: Sequence[Copy], size: int, room: Room) -> Placement | None:
    """A pipeline of what is on the disks already, in some order, where they take no more."""
    if all(one.part is None for one in copies):
        return None
    holders = [replace(one, disk_bytes=None) for one in copies if one.part or one.has_weights]
    for order in permutations(holders[:MOST_HOLDERS], size):
        rooms = _divided(order, [one.stage_room(room) for one in order])
        bounds, layers = [0], order[0].load.layers
        for stage, copy in enumerate(order):
            most = layers - (size - 1 - stage)
            bounds.append(_reach(copy, bounds[-1], most, rooms[stage]))
        if bounds[-1] == layers and all(a < b for a, b in pairwise(bounds)):
            return by_hand(ground, order, [b - a for a, b in pairwise(bounds)], room)
    return None


def _reach(copy: Copy, first: int, most: int, room: int) -> int:
    """The farthest end, up to `most`, of a stage that begins with `first` and lies on the disk."""
    last = first
    while last < most:
        if not copy.has(first, last + 1) or copy.load.stage(first, last + 1).total > room:
            break
        last += 1
    return last


def _line_of(ground: Ground, order: Sequence[Copy], room: Room) -> Line | None:
    return timed(_field(ground, order, room), range(len(order)))


# --- ranks ---


def _rank(
    ground: Ground,
    copy: Copy,
    number: int,
    first: int,
    last: int,
    need: Need,
    *,
    usable: int,
    share: float | None = None,
) -> Rank:
    load = copy.load
    part = need.weights / max(1, load.whole_weights)
    room = room_bytes(copy.card, need, usable, ground.appetite, min(1.0, part))
    reads = load.read_of(first, last) if share is None else share * load.active[-1] + load.head
    return Rank(
        rank=number,
        copy=copy,
        first_layer=first,
        last_layer=last,
        need=need,
        reserved_bytes=need.total + room,
        usable_bytes=usable,
        read_s=reads * read_s_per_byte(copy.seat, copy.backend),
    )


def _placement(
    ground: Ground,
    sharding: Sharding,
    collectives: Literal["ring", "jaccl"],
    ranks: tuple[Rank, ...],
    token_s: float,
) -> Placement:
    card, load = ranks[0].copy.card, ranks[0].copy.load
    context = load.context_tokens
    if ground.wish.context_tokens is None:
        held = partial(context_held, card)
        context = min(held(r.need, r.reserved_bytes - r.need.total) for r in ranks)
    return Placement(card, sharding, collectives, ranks, context, token_s, load.whole)
