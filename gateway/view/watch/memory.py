"""The cluster's memory by node and by rank: reserved and measured bytes.

Pure. Ranks of failed instances are left out. A value that a rank has not reported yet is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, cast

from typing_extensions import TypedDict

from bus.replica.state import ClusterState
from bus.wire.ids import NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.readings import NodeReading, RunnerReading
from gateway.view.readings import ClusterReadings


class MemoryOfRank(TypedDict):
    """The memory of a rank, in bytes. A value is null until the rank has reported it. Only rank 0
    reports the KV cache."""

    instance: str
    model: str
    rank: int
    promised_bytes: int
    process: str | None
    phase: str | None
    limit_bytes: int | None
    active_bytes: int | None
    cache_bytes: int | None
    peak_bytes: int | None
    process_bytes: int | None
    kv_bytes: NotRequired[int | None]
    kv_limit_bytes: NotRequired[int | None]
    prefix_bytes: NotRequired[int | None]
    memory_ends: NotRequired[int | None]


class NodeMemory(TypedDict):
    """The memory of a node, in bytes. A value that was not measured is null."""

    node: str
    name: str
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    wired_bytes: int | None
    held_back: bool
    promised_bytes: int
    leased_bytes: int
    active_bytes: int
    ranks: list[MemoryOfRank]


class MemoryAnswer(TypedDict):
    """The memory of all nodes."""

    nodes: list[NodeMemory]


def memory_of(state: ClusterState, readings: ClusterReadings, now: float) -> MemoryAnswer:
    """Return the memory of each node and its ranks, for JSON. Nodes are sorted by name."""
    reported = {(rank.instance, rank.rank): rank for rank in readings.ranks(state.instances, now)}
    ranks: dict[str, list[MemoryOfRank]] = {}
    for instance in state.instances.values():
        if instance.status == "failed":
            continue
        for shard in instance.shards:
            rank = _rank(instance, shard, reported.get((instance.instance, shard.rank)))
            ranks.setdefault(shard.node, []).append(rank)
    by_node = {str(reading.node): reading for reading, _ in readings.nodes(now)}
    names = _names(state, readings, now)
    for node in {*by_node, *ranks} - names.keys():
        names[node] = node
    nodes = [
        _node(node, names[node], state, by_node.get(node), ranks.get(node, []))
        for node in sorted(names, key=lambda node: (names[node], node))
    ]
    return {"nodes": nodes}


def _names(state: ClusterState, readings: ClusterReadings, now: float) -> dict[str, str]:
    names = {str(card.node): card.name for card in readings.cards(now)}
    return names | {str(node): seat.name for node, seat in state.nodes.items()}


def _node(
    node: str,
    name: str,
    state: ClusterState,
    reading: NodeReading | None,
    ranks: list[MemoryOfRank],
) -> NodeMemory:
    seat = state.nodes.get(NodeId(node))
    return {
        "node": node,
        "name": name,
        "memory_total_bytes": reading and reading.memory_total_bytes,
        "memory_available_bytes": reading and reading.memory_available_bytes,
        "wired_bytes": reading and reading.wired_bytes,
        "held_back": seat is not None and seat.draining and seat.wired_bytes > 0,
        "promised_bytes": sum(rank["promised_bytes"] for rank in ranks),
        "leased_bytes": sum(
            lease.size_bytes for lease in state.leases.values() if lease.node == node
        ),
        "active_bytes": sum(rank["active_bytes"] or 0 for rank in ranks),
        "ranks": ranks,
    }


def _rank(instance: Instance, shard: Shard, reading: RunnerReading | None) -> MemoryOfRank:
    values: Mapping[str, Any] = {} if reading is None else reading.model_dump(mode="json")
    of_all = (
        "process",
        "phase",
        "limit_bytes",
        "active_bytes",
        "cache_bytes",
        "peak_bytes",
        "process_bytes",
    )
    of_lead = ("kv_bytes", "kv_limit_bytes", "prefix_bytes", "memory_ends")
    rank: dict[str, Any] = {
        "instance": instance.instance,
        "model": instance.model,
        "rank": shard.rank,
        "promised_bytes": shard.bytes_reserved,
        **{name: values.get(name) for name in of_all},
        **{name: values.get(name) for name in of_lead if shard.rank == 0},
    }
    return cast(MemoryOfRank, rank)
