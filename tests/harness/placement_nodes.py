"""Nodes and models for placement: as small, as many and as uneven as a test wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import NodeReading
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
    free_bytes: int | None = -1,
    disk_free_bytes: int | None = None,
    reserved_bytes: int = 0,
    shards: int = 0,
    medium: Medium = "ethernet",
    **more: Any,
) -> NodeCapacity:
    """A node that can give `usable` bytes, on a network of its medium. `free_bytes` None: not
    measured; `disk_free_bytes` None: there is room for everything."""
    fields: dict[str, Any] = {
        "node": NodeId(f"n{number}"), "name": f"box{number}", "memory_bytes": 2 * usable,
        "working_set_bytes": usable, "slots": 4, "backends": ("mlx-metal",),
        "memory_bytes_per_s": 100e9, "weights_addresses": (f"tcp://10.0.0.{number % 250}:1",),
        "ips": (NodeAddress(ip=f"10.0.0.{number % 250}", medium=medium),),
        "platform": "", "cores": 1, "mlx_version": "", "shoal_version": "", "announced_at_s": 0.0,
    }  # fmt: skip
    card = NodeCard(**{**fields, **more})
    free = usable if free_bytes == -1 else free_bytes
    there = 10**16 if disk_free_bytes is None else disk_free_bytes
    return NodeCapacity(
        card, None if free is None else reading(card, free, there), reserved_bytes, 0, shards
    )


def carded(node: NodeCapacity, **fields: Any) -> NodeCapacity:
    """The node, as if it said something else of itself."""
    return replace(node, card=node.card.model_copy(update=fields))


def reading(card: NodeCard, free_bytes: int, disk_free_bytes: int = 10**16) -> NodeReading:
    """What a node with this card measures."""
    return NodeReading(
        node=card.node, memory_total_bytes=card.memory_bytes, memory_available_bytes=free_bytes,
        cpu_ratio=0.0, load_1m=0.0, disk_total_bytes=10**16, disk_free_bytes=disk_free_bytes,
        measured_at_s=0.0,
    )  # fmt: skip


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
