"""The memory of a model, whole or in parts, in bytes.

Pure. A rank that holds a share of a model needs at least

    its weights x 1.30 + KV of its layers for the guaranteed context + 256 MB

The factor is 1.10 for llama.cpp's engines. It is 1.00 if a `card.toml` states the memory of the
weights, which then overrides the size of their files. More rows and the prefix cache get at most a
quarter of the remaining memory. The guaranteed (promised) context is the number of tokens that a
request can certainly use. The instance records it, and every rank and gateway reads it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil

from bus.models.gguf import LLAMA_TAG
from bus.models.gguf import OVERHEAD as GGUF_OVERHEAD
from bus.wire.cards import ModelCard
from bus.wire.kv import KvKind, held_bytes, window_bytes, window_of

WEIGHTS_OVERHEAD = 1.30
"""The factor by which weights take more memory in an engine than in their files; that of llama.cpp
is `GGUF_OVERHEAD`."""
FIXED_BYTES = 256_000_000
PROMISED_TOKENS = 8_192
HEADROOM_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class RunnerSizing:
    """The limits of a runner: rows of its batch, and bytes of its prefix cache."""

    max_rows: int = 32
    prefix_cache_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """The minimum memory of one rank, in bytes, and the terms of the sum.

    `weights` is the stored size of its layers, `overhead` the factor. The KV cache of a row has
    `context_tokens` times `kv_per_token`, in the format `kv_kind`, plus `kv_per_row`, which does
    not grow with the context. `kv_per_row` contains the largest size of a sliding window.
    `by_card`: a `card.toml` states the memory of the weights.
    """

    weights: int
    overhead: float
    kv_per_token: int
    kv_per_row: int
    context_tokens: int
    kv_kind: KvKind = "full"
    by_card: bool = False

    @property
    def kv(self) -> int:
        """Return the bytes of KV cache for one row of the guaranteed context."""
        return self.context_tokens * self.kv_per_token + self.kv_per_row

    @property
    def total(self) -> int:
        """Return the minimum memory of the rank, in bytes."""
        return int(self.weights * self.overhead) + self.kv + FIXED_BYTES


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """A model's costs as prefix sums over its layers: entry i is for layers [0, i), in bytes.

    `active` are the weights that one token reads. `needs` are weights with overhead, and KV for the
    guaranteed context. `embedding` comes with the first layer, `head` with the last; a rank with
    both holds `whole_weights`. `activation` is the size of one token's activations between stages.
    `adapters` is an upper bound for the part of adapters in the weights. Only a rank with the whole
    model loads its draft model, which takes `draft_weights`, and `draft_kv` for one row.
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
    kv_kind: KvKind = "full"
    adapters: int = 0
    by_card: bool = False
    draft_weights: int = 0
    draft_kv: int = 0

    def read_bytes_of(self, first: int, last: int) -> int:
        """Return the bytes that a token reads in layers [first, last); the model's last layer
        includes the head."""
        return self.active[last] - self.active[first] + (self.head if last == self.layers else 0)

    def stage_cost(self, first: int, last: int) -> MemoryCost:
        """Return the cost of a pipeline stage with layers [first, last)."""
        weights, draft_kv = self.weights[last] - self.weights[first], 0
        if first == 0 and last == self.layers:
            weights, draft_kv = self.whole_weights + self.draft_weights, self.draft_kv
        else:
            weights += self.embedding if first == 0 else 0
            weights += self.head if last == self.layers else 0
        return MemoryCost(
            weights=weights,
            overhead=self.overhead,
            kv_per_token=self.kv_per_token[last] - self.kv_per_token[first],
            kv_per_row=self.kv_per_row[last] - self.kv_per_row[first] + draft_kv,
            context_tokens=self.context_tokens,
            kv_kind=self.kv_kind,
            by_card=self.by_card,
        )

    @property
    def pieces(self) -> tuple[int, ...]:
        """Return the relative sizes of the layers and of the output layer, in order, as
        llama-server divides them over GPUs. If there is no output projection, the embedding is used
        for it, too; else the embedding counts with the first layer."""
        steps = _steps(self.needs)
        tied = ceil(self.embedding * self.overhead)
        if not self.head or not steps:
            return (*steps, tied)
        return (steps[0] + tied, *steps[1:], ceil(self.head * self.overhead))

    def tensor_rank_cost(self, ranks: int, *, splits_kv: bool) -> MemoryCost:
        """Return the memory cost of one of `ranks` tensor-parallel ranks.

        The rank has a share of every layer, and the whole embedding and head. Adapters count in
        full, because one of a layer's two matrices is whole on each rank. The KV cache is whole,
        too, unless the ranks split it (`splits_kv`).
        """
        parts = ranks if splits_kv else 1
        shared = -(-(self.weights[-1] - self.adapters) // ranks)
        return MemoryCost(
            weights=shared + self.adapters + self.embedding + self.head,
            overhead=self.overhead,
            kv_per_token=-(-self.kv_per_token[-1] // parts),
            kv_per_row=-(-self.kv_per_row[-1] // parts),
            context_tokens=self.context_tokens,
            kv_kind=self.kv_kind,
            by_card=self.by_card,
        )

    def stage_limit(self, weights: int) -> int:
        """Return a memory limit in bytes: a stage within it has at most `weights` bytes of weights.
        The limit assumes the smallest ratio of KV to weights of any layer, so it is safe for all
        stages."""
        kv = [
            (need - ceil(size * self.overhead)) / max(1, size)
            for need, size in zip(_steps(self.needs), _steps(self.weights), strict=True)
        ]
        beside = max(0, weights - self.embedding - self.head)
        return int(weights * self.overhead) + FIXED_BYTES + int(min(kv, default=0.0) * beside)

    @property
    def edge_bytes(self) -> tuple[int, int]:
        """Return the bytes that the first and the last stage need in addition to their layers."""
        return (
            FIXED_BYTES + ceil(self.embedding * self.overhead),
            FIXED_BYTES + ceil(self.head * self.overhead),
        )

    @property
    def whole(self) -> MemoryCost:
        """Return the memory cost of the whole model on one node."""
        return self.stage_cost(0, self.layers)

    @property
    def read_bytes(self) -> int:
        """Return the bytes that one token reads in all layers and the head."""
        return self.read_bytes_of(0, self.layers)


def layer_costs(
    card: ModelCard, context_tokens: int | None, backend: str, kind: KvKind = "full"
) -> LayerCosts:
    """Return a model's costs by layer. A size that the card does not give by layer is divided
    equally.

    The guaranteed context is `context_tokens`, else 8,192; at most the model's own. The part of the
    KV cache that grows has the size of the format `kind`, with scales and offsets. A window grows
    no further than the model's context.
    """
    count = card.layers
    overhead = GGUF_OVERHEAD if backend.startswith(LLAMA_TAG) else WEIGHTS_OVERHEAD
    stored = _by_layer(
        card.layer_bytes,
        max(0, card.weights_bytes - card.embedding_bytes - card.head_bytes),
        count,
    )
    active = card.layer_active_bytes if len(card.layer_active_bytes) == count else stored
    each, edges = stored, (card.embedding_bytes, card.head_bytes)
    if card.memory_bytes:
        overhead = 1.0
        each = tuple(_memory_share(card, part) for part in stored)
        edges = _memory_share(card, edges[0]), _memory_share(card, edges[1])
    in_full = _by_layer(card.layer_kv, card.kv_bytes_per_token, count)
    kv = [held_bytes(part, kind, card.kv_value_bytes, card.kv_group) for part in in_full]
    windows = [window_bytes(part, kind, card.context_tokens) for part in in_full]
    fixed = [
        part + window
        for part, window in zip(
            _by_layer(card.layer_kv_fixed, card.kv_bytes_fixed, count), windows, strict=True
        )
    ]
    context = min(context_tokens or PROMISED_TOKENS, card.context_tokens)
    needs = [ceil(w * overhead) + context * k + f for w, k, f in zip(each, kv, fixed, strict=True)]
    return LayerCosts(
        layers=count,
        context_tokens=context,
        overhead=overhead,
        weights=_prefix_sums(each),
        active=_prefix_sums(active),
        kv_per_token=_prefix_sums(kv),
        kv_per_row=_prefix_sums(fixed),
        needs=_prefix_sums(needs),
        embedding=edges[0],
        head=edges[1],
        whole_weights=card.memory_bytes or card.weights_bytes,
        activation=card.activation_bytes,
        kv_kind=kind,
        adapters=min(_adapter_bytes(card), sum(each)),
        by_card=card.memory_bytes > 0,
        draft_weights=0
        if card.draft is None
        else ceil(card.draft.weights_bytes * WEIGHTS_OVERHEAD / overhead),
        draft_kv=0 if card.draft is None else context * card.draft.kv_bytes_per_token,
    )


def _adapter_bytes(card: ModelCard) -> int:
    """Return an upper bound in bytes for the memory of a model's adapters, from the sizes of their
    files. In memory the matrices of a layer are stacked: all are as wide as the widest, and there
    is one more of zeros."""
    widest = max((adapter.rank for adapter in card.adapters), default=0)
    each = [ceil(adapter.size_bytes * widest / max(1, adapter.rank)) for adapter in card.adapters]
    cast = 2 if card.dtype == "float32" else 1
    return cast * (len(each) + 1) * max(each, default=0)


def headroom_bytes(need: MemoryCost, usable: int, sizing: RunnerSizing, share: float) -> int:
    """Return the bytes to reserve beyond the minimum, for further rows and the prefix cache.

    `share` (0..1] is this rank's part of the model. The result is at most a quarter of the usable
    bytes beyond the minimum.
    """
    wanted = (sizing.max_rows - 1) * need.kv + int(share * sizing.prefix_cache_bytes)
    return min(max(0, wanted), int(HEADROOM_SHARE * max(0, usable - need.total)))


def longest_context(card: ModelCard, need: MemoryCost, room: int) -> int:
    """Return the longest context, in tokens, of which a rank can hold two rows.

    The result is at least the guaranteed context and at most the model's own. `room` is the rank's
    usable bytes beyond its minimum.
    """
    if not need.kv_per_token:
        return card.context_tokens
    held = (need.kv + room) // 2 // need.kv_per_token
    return min(card.context_tokens, max(need.context_tokens, held))


def cost_text(need: MemoryCost) -> str:
    """Return the sum as text: `1.5 GB = weights 1.0 x 1.30 + KV 0.0 for 8,192 tokens + 0.26`."""
    held = "" if need.kv_kind == "full" else f" in {need.kv_kind}"
    source = " (memory_bytes of its card.toml)" if need.by_card else ""
    long = "any context" if window_of(need.kv_kind) else f"{need.context_tokens:,} tokens"
    return (
        f"{gb(need.total)} GB = weights {gb(need.weights)}{source} x {need.overhead:.2f} + "
        f"KV {gb(need.kv)} for {long}{held} + {gb(FIXED_BYTES)}"
    )


def gb(count: float) -> str:
    """Return bytes as gigabytes (powers of 1000) with two digits, for people."""
    return f"{count / 1e9:.2f}"


def _by_layer(by_layer: tuple[int, ...], total: int, layers: int) -> tuple[int, ...]:
    """Return the values by layer if there is a value for each layer, else `total` in near-equal
    parts."""
    if len(by_layer) == layers:
        return by_layer
    return tuple(total * (i + 1) // layers - total * i // layers for i in range(layers))


def _memory_share(card: ModelCard, part: int) -> int:
    """Return how many bytes of memory `part` bytes of the weights' files take: the same share of
    the memory as of the files."""
    return -(-part * card.memory_bytes // max(1, card.weights_bytes))


def _prefix_sums(values: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    return tuple(accumulate(values, initial=0))


def _steps(sums: tuple[int, ...]) -> list[int]:
    return [after - before for before, after in pairwise(sums)]
