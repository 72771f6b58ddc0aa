"""What may hold a model: which nodes could run it, and the best candidate of each size and kind.

Pure. A node that lacks the weights can fetch them from a node that has them, if its disk has
room; the card then comes from any node that has the model. Without Metal, floating-point
weights are cast to 32 bits: a 16-bit card is counted twofold there, and the ranks of a group all
compute alike, for what travels between them has one type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from bus.cards import ModelCard
from bus.ids import ModelId, NodeId
from bus.instances import Sharding
from master.bill import Appetite, Layered, Need, context_held, layered, room_bytes
from master.groups import Field, Line, Member, line_of, pipeline_line, tensor_line, timed
from master.seats import Seat, preference, resolve_backend
from master.speed import Links, read_s_per_byte
from master.split import fits

NEAR = 1.10
"""Candidates whose tokens take up to this much longer count as equally fast."""
HOLDERS = 4
"""Nodes with weights that are tried in place of each member that has none."""
GROUP_ENGINE = "mlx-"
QUANTIZED_CAST = 1.15
"""Scales and biases of packed weights, cast to 32 bits."""

Kind = Literal["pipeline", "tensor"]
Room = Callable[[Seat], int]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be placed, and under which conditions. `layers` by node, in stage order."""

    model: ModelId
    context_tokens: int | None = None
    excluded_nodes: tuple[NodeId, ...] = ()
    min_nodes: int = 1
    sharding: Kind | None = None
    layers: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Copy:
    """A node that could run the model: the card as it is there, the backend it resolves to."""

    seat: Seat
    card: ModelCard
    backend: str
    has_weights: bool
    load: Layered

    @property
    def fetch_bytes(self) -> int:
        """What has to come over the network first: at most the whole of the files."""
        return 0 if self.has_weights else self.card.size_bytes

    @property
    def dtype(self) -> str:
        return self.card.dtype


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
        return sum(rank.copy.fetch_bytes for rank in self.ranks)


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


def now(seat: Seat) -> int:
    """What a node can give to a model now; nothing without a free slot."""
    return seat.usable_bytes if seat.has_slot else 0


def ever(seat: Seat) -> int:
    """What a node could give if all others left."""
    return seat.ceiling_bytes


def find_copies(
    wish: Wish, allowed: Sequence[Seat], nodes: Sequence[Seat]
) -> tuple[tuple[Copy, ...], dict[str, str]]:
    """(nodes that could run the model, why each other cannot). Some node has to have it."""
    donors = [card for seat in nodes if (card := seat.card_of(wish.model)) is not None]
    found: list[Copy] = []
    blocked: dict[str, str] = {}
    loads: dict[tuple[int, str, bool], tuple[ModelCard, Layered]] = {}
    for seat in allowed:
        own = seat.card_of(wish.model)
        donor = own or donors[0]
        backend = resolve_backend(donor, seat.backends)
        if backend is None:
            fit = ", ".join(donor.compatible_backends)
            blocked[seat.name] = f"runs {', '.join(seat.backends)}; the model needs one of {fit}"
            continue
        if own is None:
            alike = [card for card in donors if card.dtype == _dtype(backend)]
            donor = min(alike or donors, key=lambda card: card.size_bytes)
            if seat.disk_free_bytes is not None and seat.disk_free_bytes < donor.size_bytes:
                blocked[seat.name] = "its disk has no room for the weights"
                continue
        key = (id(donor), backend, own is None)
        if key not in loads:
            card = donor if own is not None else as_computed(donor, backend)
            loads[key] = (card, layered(card, wish.context_tokens, backend))
        card, load = loads[key]
        found.append(Copy(seat, card, backend, own is not None, load))
    return tuple(found), blocked


def as_computed(card: ModelCard, backend: str) -> ModelCard:
    """A card as it will be on a node with that backend. One of 32 bits stays as it is (what
    the files hold is not known from it), which is too much rather than too little."""
    if card.dtype == _dtype(backend) or card.dtype == "float32":
        return card
    times = 2.0 if card.quantization == "none" else QUANTIZED_CAST

    def grown(sizes: tuple[int, ...], factor: float) -> tuple[int, ...]:
        return tuple(int(size * factor) for size in sizes)

    return card.model_copy(
        update={
            "dtype": "float32",
            "weights_bytes": int(card.weights_bytes * times),
            "layer_bytes": grown(card.layer_bytes, times),
            "layer_active_bytes": grown(card.layer_active_bytes, times),
            "embedding_bytes": int(card.embedding_bytes * times),
            "head_bytes": int(card.head_bytes * times),
            "kv_bytes_per_token": 2 * card.kv_bytes_per_token,
            "kv_bytes_fixed": 2 * card.kv_bytes_fixed,
            "layer_kv": grown(card.layer_kv, 2.0),
            "layer_kv_fixed": grown(card.layer_kv_fixed, 2.0),
            "activation_bytes": 2 * card.activation_bytes,
        }
    )


def best_single(ground: Ground) -> Placement | None:
    """The best node for a whole copy: one that has the weights, then one whose backend the card
    prefers, then the fastest, then the one with most room."""
    found = [one for one in ground.copies if one.load.whole.total <= now(one.seat)]
    if not found:
        return None
    ranked = min((not one.has_weights, preference(one.card, one.backend)) for one in found)
    found = [o for o in found if (not o.has_weights, preference(o.card, o.backend)) == ranked]
    least = min(_token_s(one) for one in found)
    near = [one for one in found if _token_s(one) <= NEAR * least]
    chosen = max(near, key=lambda one: (one.seat.usable_bytes, one.seat.node))
    return single(ground, chosen)


def single(ground: Ground, copy: Copy) -> Placement:
    """A whole copy on one node."""
    rank = _rank(ground, copy, 0, 0, copy.load.layers, copy.load.whole)
    return _placement(ground, "none", "ring", (rank,), _token_s(copy))


def best_group(ground: Ground, kind: Kind, size: int, room: Room) -> Placement | None:
    """The fastest group of one kind and size that is found among nodes that compute alike."""
    found: list[Placement] = []
    for copies in _alike(ground.copies):
        if why_unshardable(copies[0].card, kind, size) is None:
            placed = _group(ground, copies, kind, size, room)
            if placed is not None:
                found.append(placed)
    return min(found, key=lambda one: one.token_s, default=None)


def by_hand(
    ground: Ground, order: Sequence[Copy], counts: Sequence[int], room: Room
) -> Placement | None:
    """What a manual split describes, or None where it does not fit."""
    if len(order) == 1:
        copy = order[0]
        return single(ground, copy) if copy.load.whole.total <= room(copy.seat) else None
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
    """Nodes that can be ranks of one group: MLX's engine, one type of numbers."""
    alike: dict[str, list[Copy]] = {}
    for one in copies:
        if one.backend.startswith(GROUP_ENGINE):
            alike.setdefault(one.dtype, []).append(one)
    return list(alike.values())


def _field(ground: Ground, copies: Sequence[Copy], room: Room) -> Field:
    members = [
        Member(one.seat, one.backend, room(one.seat), read_s_per_byte(one.seat, one.backend))
        for one in copies
    ]
    return Field(_largest_load(copies), members, ground.links)


def _largest_load(copies: Sequence[Copy]) -> Layered:
    """Nodes that hold other files of the same model count as the largest of them."""
    return max(
        {id(one.load): one.load for one in copies}.values(), key=lambda load: load.whole.total
    )


def _group(
    ground: Ground, copies: Sequence[Copy], kind: Kind, size: int, room: Room
) -> Placement | None:
    roomy = [one for one in copies if room(one.seat) > 0]
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
    ranks = [
        _rank(
            ground,
            copy,
            size - 1 - stage,
            line.bounds[stage],
            line.bounds[stage + 1],
            load.stage(line.bounds[stage], line.bounds[stage + 1]),
        )
        for stage, copy in enumerate(order)
    ]
    how: Literal["ring", "jaccl"] = "jaccl" if line.mesh else "ring"
    return _placement(ground, "pipeline", how, tuple(reversed(ranks)), line.token_s)


def _tensor(ground: Ground, order: Sequence[Copy], line: Line) -> Placement:
    load, size = _largest_load(order), len(order)
    need = load.slice(size, splits_kv=order[0].card.tensor_splits_kv)
    ranks = tuple(
        _rank(ground, copy, number, 0, load.layers, need, share=1 / size)
        for number, copy in enumerate(order)
    )
    how: Literal["ring", "jaccl"] = "jaccl" if line.mesh else "ring"
    return _placement(ground, "tensor", how, ranks, line.token_s)


def _with_weights(
    ground: Ground, placed: Placement, roomy: Sequence[Copy], room: Room
) -> Placement:
    """Put nodes that have the weights into the places of members that would fetch them, where
    that leaves the group nearly as fast."""
    slowest = NEAR * placed.token_s
    for place in range(len(placed.ranks)):
        if placed.ranks[place].copy.has_weights:
            continue
        taken = {rank.copy.seat.node for rank in placed.ranks}
        holders = [c for c in roomy if c.has_weights and c.seat.node not in taken]
        holders.sort(key=lambda one: (_token_s(one), -room(one.seat)))
        for holder in holders[:HOLDERS]:
            order = [rank.copy for rank in reversed(placed.ranks)]
            order[len(order) - 1 - place] = holder
            line = _line_of(ground, order, room)
            if line is not None and line.token_s <= slowest:
                placed = _pipeline(ground, order, line)
                break
    return placed


def _line_of(ground: Ground, order: Sequence[Copy], room: Room) -> Line | None:
    return timed(_field(ground, order, room), range(len(order)))


# --- ranks ---


def _dtype(backend: str) -> str:
    return "float32" if backend.endswith("-cpu") else "auto"


def _token_s(copy: Copy) -> float:
    return copy.load.read_bytes * read_s_per_byte(copy.seat, copy.backend)


def _rank(
    ground: Ground,
    copy: Copy,
    number: int,
    first: int,
    last: int,
    need: Need,
    *,
    share: float | None = None,
) -> Rank:
    load, usable = copy.load, copy.seat.usable_bytes
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
