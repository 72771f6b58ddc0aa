"""Which nodes could run a model, and as what: the card as it is there, and what must be fetched.

Pure. A node that lacks the weights can fetch them from a node that has them, if its disk has
room: for all of them, or for those of its stage where the family is fetched in parts. The card
then comes from any node that has the model. Without Metal, floating-point weights are cast to 32
bits, so a 16-bit card is counted twofold there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bus.wire.cards import ModelCard, PartialModel
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from master.placement.capacity import Seat, resolve_backend
from master.placement.memory_cost import Layered, layered
from master.placement.speed import read_s_per_byte

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
    """A node that could run the model: the card as it is there, the backend it resolves to.

    `disk_bytes` is what its disk takes of the weights where that is not all of them: then the
    node can be a stage of a pipeline and nothing else. `part` is what lies there already.
    """

    seat: Seat
    card: ModelCard
    backend: str
    has_weights: bool
    load: Layered
    disk_bytes: int | None = None
    part: PartialModel | None = None

    @property
    def fetch_bytes(self) -> int:
        """What has to come over the network first for a whole copy."""
        have = 0 if self.part is None else self.part.have_bytes
        return 0 if self.has_weights else max(0, self.card.size_bytes - have)

    def stage_room(self, room: Room) -> int:
        """What a stage of a pipeline may need here, so that its files fit, too. They are taken to
        be as large as its weights in memory."""
        there = room(self.seat)
        if not self.disk_bytes:
            return there if self.disk_bytes is None else 0
        return min(there, self.load.room_for(self.disk_bytes))

    def has(self, first: int, last: int) -> bool:
        """Whether these layers lie on its disk."""
        return self.has_weights or (self.part is not None and self.part.holds(first, last))

    def holds_whole(self, room: Room) -> bool:
        """Whether a whole copy fits."""
        return self.disk_bytes is None and self.load.whole.total <= room(self.seat)

    @property
    def kin(self) -> tuple[str, ...]:
        """What the ranks of one group have in common: engine, type of numbers, files."""
        return (self.backend.partition("-")[0], self.card.dtype, self.card.digest)

    @property
    def token_s(self) -> float:
        """Seconds for a token with the whole model here."""
        return self.load.read_bytes * read_s_per_byte(self.seat, self.backend)


def room_now(seat: Seat) -> int:
    """What a node can give to a model now; nothing without a free slot."""
    return seat.usable_bytes if seat.has_slot else 0


def room_ever(seat: Seat) -> int:
    """What a node could give if all others left."""
    return seat.ceiling_bytes


def find_copies(
    wish: Wish, allowed: Sequence[Seat], nodes: Sequence[Seat]
) -> tuple[tuple[Copy, ...], dict[str, str]]:
    """(nodes that could run the model, why each other cannot). Some node has to have it."""
    donors = [card for seat in nodes if (card := seat.card_of(wish.model)) is not None]
    given = [card for seat in nodes if seat.gives_weights and (card := seat.card_of(wish.model))]
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
            if not given:
                blocked[seat.name] = "lacks the weights, and no node gives them to others"
                continue
            alike = [card for card in given if card.dtype == _dtype(backend)]
            donor = min(alike or given, key=lambda card: card.size_bytes)
        part = None if own is not None else seat.part_of(wish.model)
        disk_bytes = None if own is not None else _disk_bytes(seat, donor)
        is_full = disk_bytes == 0 and part is None
        if is_full or (disk_bytes is not None and not donor.fetched_in_parts):
            blocked[seat.name] = "its disk has no room for the weights"
            continue
        key = (id(donor), backend, own is None)
        if key not in loads:
            card = donor if own is not None else as_computed(donor, backend)
            loads[key] = (card, layered(card, wish.context_tokens, backend))
        card, load = loads[key]
        found.append(Copy(seat, card, backend, own is not None, load, disk_bytes, part))
    return tuple(found), blocked


def _disk_bytes(seat: Seat, card: ModelCard) -> int | None:
    """What the disk takes beside what is to stay free; None: the whole model, or not measured."""
    if seat.disk_free_bytes is None:
        return None
    takes = max(0, seat.disk_free_bytes - DISK_MARGIN_BYTES)
    return None if takes >= card.size_bytes else takes


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


def _dtype(backend: str) -> str:
    return "float32" if backend.endswith("-cpu") else "auto"
