"""Nodes and models for placement: as small, as many and as uneven as a test wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId, NodeId
from bus.wire.topology import LinkCost, Medium, NodeAddress
from master.placement.capacity import NodeCapacity
from master.placement.memory_cost import LayerCosts, layer_costs
from master.placement.pipeline_search import Member, SearchSpace
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
) -> NodeCapacity:
    """A node that can give `usable` bytes, on a network of its medium."""
    fields: dict[str, Any] = {
        "id": NodeId(f"n{number}"), "name": f"box{number}", "memory_bytes": 2 * usable,
        "free_bytes": usable, "reserved_bytes": 0, "loading_bytes": 0, "slots": 4, "shards": 0,
        "backends": ("mlx-metal",), "models": models, "limit_bytes": usable,
        "memory_bytes_per_s": memory_bytes_per_s,
        "ips": (NodeAddress(ip=f"10.0.0.{number % 250}", medium=medium),),
    }  # fmt: skip
    return NodeCapacity(**{**fields, **more})


def search_space(
    costs: LayerCosts,
    rooms: Sequence[int],
    read_s: Sequence[float],
    hops: Mapping[tuple[int, int], LinkCost] | None = None,
) -> SearchSpace:
    """Members with these rooms and speeds, and links by pair (both ways)."""
    nodes = [node(i, usable=room) for i, room in enumerate(rooms)]
    measured: dict[NodeId, dict[NodeId, LinkCost]] = {each.id: {} for each in nodes}
    for (one, other), link in (hops or {}).items():
        measured[nodes[one].id][nodes[other].id] = link
        measured[nodes[other].id][nodes[one].id] = link
    members = [
        Member(one, room, speed) for one, room, speed in zip(nodes, rooms, read_s, strict=True)
    ]
    return SearchSpace(costs, members, Links(measured))


def costs_of(card: ModelCard, context_tokens: int | None = None) -> LayerCosts:
    return layer_costs(card, context_tokens, "mlx-metal")
