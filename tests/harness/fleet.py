"""Nodes and models for placement: as small, as many and as uneven as a test wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId, NodeId
from bus.wire.topology import LinkCost, Medium, NodeAddress
from master.placement.capacity import Seat
from master.placement.memory_cost import Layered, layered
from master.placement.pipeline_search import Field, Member
from master.placement.speed import Links

GB = 10**9
MB = 10**6
MODEL = ModelId("m")


def model(
    layer_bytes: Sequence[int] = (GB,) * 8,
    *,
    embedding: int = 0,
    head: int = 0,
    kv: int = 10_000,
    **more: Any,
) -> ModelCard:
    """A model of as many layers as there are sizes; `kv` bytes a token in each of them."""
    weights = sum(layer_bytes) + embedding + head
    fields: dict[str, Any] = {
        "model": MODEL, "path": "/m", "family": "qwen3", "layers": len(layer_bytes),
        "weights_bytes": weights, "size_bytes": weights, "dtype": "auto",
        "kv_bytes_per_token": kv * len(layer_bytes), "context_tokens": 32_768, "vocabulary": 100,
        "layer_bytes": tuple(layer_bytes), "layer_kv": (kv,) * len(layer_bytes),
        "layer_kv_fixed": (0,) * len(layer_bytes), "embedding_bytes": embedding,
        "head_bytes": head, "activation_bytes": 8192,
        "tensor_sizes": {"heads": 32, "KV heads": 8, "MLP inputs": 4096},
    }  # fmt: skip
    return ModelCard(**{**fields, **more})


def node(
    number: int,
    *,
    usable: int = 16 * GB,
    memory_bytes_per_s: float = 100e9,
    models: tuple[ModelCard, ...] = (),
    medium: Medium = "ethernet",
    **more: Any,
) -> Seat:
    """A node that can give `usable` bytes, on a network of its medium."""
    fields: dict[str, Any] = {
        "node": NodeId(f"n{number}"), "name": f"box{number}", "memory_bytes": 2 * usable,
        "free_bytes": usable, "reserved_bytes": 0, "loading_bytes": 0, "slots": 4, "shards": 0,
        "backends": ("mlx-metal",), "models": models, "limit_bytes": usable,
        "memory_bytes_per_s": memory_bytes_per_s,
        "ips": (NodeAddress(ip=f"10.0.0.{number % 250}", medium=medium),),
    }  # fmt: skip
    return Seat(**{**fields, **more})


def field(
    load: Layered,
    rooms: Sequence[int],
    read_s: Sequence[float],
    hops: Mapping[tuple[int, int], LinkCost] | None = None,
) -> Field:
    """Members with these rooms and speeds, and links by pair (both ways)."""
    seats = [node(i, usable=room) for i, room in enumerate(rooms)]
    measured: dict[NodeId, dict[NodeId, LinkCost]] = {seat.node: {} for seat in seats}
    for (one, other), link in (hops or {}).items():
        measured[seats[one].node][seats[other].node] = link
        measured[seats[other].node][seats[one].node] = link
    members = [
        Member(seat, room, each) for seat, room, each in zip(seats, rooms, read_s, strict=True)
    ]
    return Field(load, members, Links(measured))


def load_of(card: ModelCard, context_tokens: int | None = None) -> Layered:
    return layered(card, context_tokens, "mlx-metal")
