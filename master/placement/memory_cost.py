"""What a model costs, whole or in parts: bytes, by arithmetic that can be read back.

Pure. A rank that holds a share of a model needs

    its weights x 1.30 + KV of its layers for the context promised + 256 MB

at least (1.10 for llama.cpp's engines). What it is given beyond that, for more rows and its
prefix cache, is at most a quarter of what then remains. The context that was promised is stamped
on the instance and read from there by every rank and gateway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

from bus.wire.cards import ModelCard

WEIGHTS_OVERHEAD = 1.30
GGUF_OVERHEAD = 1.10
FIXED_BYTES = 256_000_000
PROMISED_TOKENS = 8_192
ROOM_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Appetite:
    """What a runner makes use of, beyond the least that it needs."""

    max_rows: int = 32
    prefix_cache_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class Need:
    """The bill. All in bytes. `kv_per_token` and `kv_per_row` are what KV was computed from."""

    weights: int
    overhead: float
    kv_per_token: int
    kv_per_row: int
    context_tokens: int

    @property
    def weights_with_overhead(self) -> int:
        return int(self.weights * self.overhead)

    @property
    def kv(self) -> int:
        return self.context_tokens * self.kv_per_token + self.kv_per_row

    @property
    def fixed(self) -> int:
        return FIXED_BYTES

    @property
    def total(self) -> int:
        return self.weights_with_overhead + self.kv + self.fixed


@dataclass(frozen=True, slots=True)
class Layered:
    """A model's costs as prefix sums over its layers: entry i is that of layers [0, i).

    `active` is what one token reads. `embedding` comes with the first layer, `head` with the
    last; a single rank that has both reads and holds `whole_weights`.
    """

    layers: int
    context_tokens: int
    overhead: float
    weights: tuple[int, ...]
    active: tuple[int, ...]
    kv_per_token: tuple[int, ...]
    kv_per_row: tuple[int, ...]
    needs: tuple[int, ...]
    embedding: int
    head: int
    whole_weights: int
    activation: int

    def read_of(self, first: int, last: int) -> int:
        """What one token reads of layers [first, last), the head included where it lies."""
        return self.active[last] - self.active[first] + (self.head if last == self.layers else 0)

    def stage(self, first: int, last: int) -> Need:
        """The bill of a pipeline stage with layers [first, last)."""
        weights = self.weights[last] - self.weights[first]
        if first == 0 and last == self.layers:
            weights = self.whole_weights
        else:
            weights += self.embedding if first == 0 else 0
            weights += self.head if last == self.layers else 0
        return Need(
            weights=weights,
            overhead=self.overhead,
            kv_per_token=self.kv_per_token[last] - self.kv_per_token[first],
            kv_per_row=self.kv_per_row[last] - self.kv_per_row[first],
            context_tokens=self.context_tokens,
        )

    def slice(self, ranks: int, *, splits_kv: bool) -> Need:
        """The bill of one of `ranks` tensor-parallel ranks: a share of every layer; embeddings
        and head are on each of them, and so is KV that does not divide."""
        parts = ranks if splits_kv else 1
        return Need(
            weights=-(-self.weights[-1] // ranks) + self.embedding + self.head,
            overhead=self.overhead,
            kv_per_token=-(-self.kv_per_token[-1] // parts),
            kv_per_row=-(-self.kv_per_row[-1] // parts),
            context_tokens=self.context_tokens,
        )

    def room_for(self, weights: int) -> int:
        """Of which a stage can be sure: what needs no more than this in all has no more than so
        many bytes of weights. KV counts by the layer that has least of it for its weights."""
        kv = [context_kv / max(1, size) for context_kv, size in self._layers()]
        beside = max(0, weights - self.embedding - self.head)
        return int(weights * self.overhead) + FIXED_BYTES + int(min(kv, default=0.0) * beside)

    def _layers(self) -> Iterator[tuple[int, int]]:
        """(KV, weights) of each."""
        for layer in range(self.layers):
            size = self.weights[layer + 1] - self.weights[layer]
            need = self.needs[layer + 1] - self.needs[layer]
            yield need - ceil(size * self.overhead), size

    @property
    def edge_needs(self) -> tuple[int, int]:
        """What the first stage and the last need beside their layers."""
        return (
            FIXED_BYTES + ceil(self.embedding * self.overhead),
            FIXED_BYTES + ceil(self.head * self.overhead),
        )

    @property
    def whole(self) -> Need:
        """The bill of one copy on one node."""
        return self.stage(0, self.layers)

    @property
    def read_bytes(self) -> int:
        """What one token reads of all layers and the head."""
        return self.read_of(0, self.layers)


def overhead_of(backend: str) -> float:
    """How much more than its weights an engine takes."""
    return GGUF_OVERHEAD if backend.startswith("llamacpp-") else WEIGHTS_OVERHEAD


def promise(card: ModelCard, context_tokens: int | None) -> int:
    """The context promised: what was asked for, else 8,192 tokens, and never more than the
    model was made for."""
    return min(context_tokens or PROMISED_TOKENS, card.context_tokens)


def layered(card: ModelCard, context_tokens: int | None, backend: str) -> Layered:
    """A model's costs by layer. What a card does not tell by layer is taken as equal."""
    count, overhead = card.layers, overhead_of(backend)
    edges = card.embedding_bytes + card.head_bytes
    known = len(card.layer_bytes) == count
    each = card.layer_bytes if known else _even(max(0, card.weights_bytes - edges), count)
    active = card.layer_active_bytes if len(card.layer_active_bytes) == count else each
    kv = card.layer_kv if len(card.layer_kv) == count else _even(card.kv_bytes_per_token, count)
    fixed = card.layer_kv_fixed
    fixed = fixed if len(fixed) == count else _even(card.kv_bytes_fixed, count)
    context = promise(card, context_tokens)
    needs = [ceil(w * overhead) + context * k + f for w, k, f in zip(each, kv, fixed, strict=True)]
    return Layered(
        layers=count,
        context_tokens=context,
        overhead=overhead,
        weights=_sums(each),
        active=_sums(active),
        kv_per_token=_sums(kv),
        kv_per_row=_sums(fixed),
        needs=_sums(needs),
        embedding=card.embedding_bytes,
        head=card.head_bytes,
        whole_weights=card.weights_bytes,
        activation=card.activation_bytes,
    )


def room_bytes(card: ModelCard, need: Need, usable: int, appetite: Appetite, share: float) -> int:
    """Bytes beyond the least: for as many rows as a runner takes, and its prefix cache. `share`
    (0..1] is this rank's part of the model."""
    row = need.context_tokens * need.kv_per_token + need.kv_per_row
    wanted = appetite.max_rows * row + int(share * appetite.prefix_cache_bytes) - need.kv
    return min(max(0, wanted), int(ROOM_SHARE * max(0, usable - need.total)))


def context_held(card: ModelCard, need: Need, room: int) -> int:
    """The longest context of which a rank can hold two rows, within what the model was made
    for, and never less than what was promised."""
    if not need.kv_per_token:
        return card.context_tokens
    held = (need.kv + room) // 2 // need.kv_per_token
    return min(card.context_tokens, max(need.context_tokens, held))


def bill_text(need: Need) -> str:
    """`1.5 GB = weights 1.0 x 1.30 + KV 0.0 for 8,192 tokens + 0.26`."""
    return (
        f"{gb(need.total)} GB = weights {gb(need.weights)} x {need.overhead:.2f} + "
        f"KV {gb(need.kv)} for {need.context_tokens:,} tokens + {gb(need.fixed)}"
    )


def gb(count: float) -> str:
    """Bytes as gigabytes for people (powers of 1000)."""
    return f"{count / 1e9:.2f}"


def _even(total: int, parts: int) -> tuple[int, ...]:
    """`total` in near-equal whole parts."""
    return tuple(total * (i + 1) // parts - total * i // parts for i in range(parts))


def _sums(values: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    return tuple(accumulate(values, initial=0))
