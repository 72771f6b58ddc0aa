"""The state of the cluster now, as one plain value: nodes, instances and counts.

Pure. Rates and queues cover the whole cluster, as runners and gateways last reported them.
`counters` cover this node's gateway, summed over its HTTP processes. A missing value is None.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import TypedDict

from bus.hardware.thunderbolt import bridge_loops
from bus.replica.state import ClusterState
from bus.wire.accelerators import HardwareReading
from bus.wire.cards import NodeCard
from bus.wire.ids import NodeId
from bus.wire.instances import Instance
from bus.wire.messages.readings import NodeReading, PullReading, RunnerReading
from gateway.view.counters import NodeTotals, RecentFigures, TotalsTold
from gateway.view.readings import ClusterReadings, hardware_of
from gateway.view.watch.node_health import NodeHealth, node_health

NOTHING_YET = RecentFigures()
SENSED = frozenset({"accelerators", "cpu_temperature_c", "cpu_power_w", "untold"})
"""Fields of a hardware reading that a snapshot shows."""


class SeenNode(TypedDict):
    """A node. A value that was not measured is null."""

    node: str
    name: str
    draining: bool
    silent_s: float | None
    health: NodeHealth
    cpu_ratio: float | None
    load_1m: float | None
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    disk_total_bytes: int | None
    disk_free_bytes: int | None


class SnapshotNode(SeenNode):
    """A node with its reserved, used and leased memory."""

    promised_bytes: int
    used_bytes: int
    leased_bytes: int
    hardware: dict[str, Any] | None


class SnapshotRank(TypedDict):
    """A rank of an instance, with its layers."""

    rank: int
    node: str
    first_layer: int
    last_layer: int
    promised_bytes: int
    used_bytes: int | None


class SnapshotInstance(TypedDict):
    """An instance of a model. A value is null if the instance's lead runner has not reported it."""

    instance: str
    model: str
    status: str
    why: str
    sharding: str
    context_tokens: int
    pinned: bool
    ranks: list[SnapshotRank]
    phase: str | None
    loaded_bytes: int
    to_load_bytes: int
    running: int | None
    waiting: int | None
    max_running: int | None
    generation_tokens_per_s: float | None
    kv_bytes: int | None
    kv_limit_bytes: int | None


class SnapshotAnswer(TypedDict):
    """The state of the cluster at `at_s`."""

    at_s: float
    node: str
    term: int
    index: int
    holder: str | None
    live: bool
    running: int
    waiting: int
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    kv_bytes: int
    kv_limit_bytes: int
    nodes: list[SnapshotNode]
    bridge_loops: list[list[str]]
    instances: list[SnapshotInstance]
    pulls: list[dict[str, Any]]
    counters: TotalsTold
    queue_max: int
    uptime_s: float
    avg_tps_60s: float | None
    peak_tps_60s: float | None
    avg_latency_60s: float | None


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The inputs of a snapshot: the state and readings of one process.

    `now` is on the monotonic clock; `at_s` is wall time. `node` is this node. `amiss` are the
    problems of this node's records. `queue_max` is the maximum number of requests that may wait at
    this node's gateway. `recent` has that gateway's figures of the last minute.
    """

    node: NodeId
    state: ClusterState
    holder: NodeId | None
    live: bool
    readings: ClusterReadings
    totals: NodeTotals
    now: float
    at_s: float
    amiss: Sequence[str] = ()
    queue_max: int = 0
    recent: RecentFigures = NOTHING_YET


def snapshot_of(seen: ClusterSeen) -> SnapshotAnswer:
    """Return the snapshot, for JSON. Instances of a collective test are left out."""
    state, readings, now = seen.state, seen.readings, seen.now
    ranks = readings.ranks(state.instances, now)
    leads = [rank for rank in ranks if rank.rank == 0]
    at_gateways = sum(model.waiting for demand in readings.demands(now) for model in demand.models)
    return {
        "at_s": seen.at_s,
        "node": seen.node,
        "term": state.term,
        "index": state.index,
        "holder": seen.holder,
        "live": seen.live,
        "running": sum(lead.running for lead in leads),
        "waiting": sum(lead.waiting for lead in leads) + at_gateways,
        "prompt_tokens_per_s": sum(lead.prompt_tokens_per_s for lead in leads),
        "generation_tokens_per_s": sum(lead.generation_tokens_per_s for lead in leads),
        "kv_bytes": sum(lead.kv_bytes for lead in leads),
        "kv_limit_bytes": sum(lead.kv_limit_bytes for lead in leads),
        "nodes": _nodes(seen, ranks),
        "bridge_loops": _bridge_loops(readings, now),
        "instances": [
            _instance(instance, ranks)
            for instance in state.instances.values()
            if instance.test is None
        ],
        "pulls": [
            {"node": reading.node, **pull.model_dump(mode="json")}
            for reading in readings.fresh(PullReading, now)
            for pull in reading.pulls
        ],
        "counters": seen.totals.plain(),
        "queue_max": seen.queue_max,
        "uptime_s": seen.recent.uptime_s,
        "avg_tps_60s": seen.recent.avg_tps_60s,
        "peak_tps_60s": seen.recent.peak_tps_60s,
        "avg_latency_60s": seen.recent.avg_latency_60s,
    }


def _nodes(seen: ClusterSeen, ranks: Sequence[RunnerReading]) -> list[SnapshotNode]:
    cards = {str(card.node): card for card in seen.readings.cards(seen.now)}
    readings = {str(reading.node): (reading, age) for reading, age in seen.readings.nodes(seen.now)}
    sensors = hardware_of(seen.readings, seen.now)
    promised = _promised(seen.state)
    used: defaultdict[str, int] = defaultdict(int)
    for rank in ranks:
        used[rank.node] += rank.active_bytes
    names = {*seen.state.nodes, *cards, *readings}
    nodes: list[SnapshotNode] = [
        {
            **_node(node, seen, cards.get(node), *readings.get(node, (None, None))),
            "promised_bytes": promised[node],
            "used_bytes": used[node],
            "leased_bytes": sum(
                lease.size_bytes for lease in seen.state.leases.values() if lease.node == node
            ),
            "hardware": _hardware(sensors.get(NodeId(node))),
        }
        for node in names
    ]
    return sorted(nodes, key=lambda node: (node["name"], node["node"]))


def _bridge_loops(readings: ClusterReadings, now: float) -> list[list[str]]:
    """Return the nodes of each ring of Thunderbolt bridges. In such a ring a broadcast circulates
    without end."""
    bridges = {
        reading.node: reading.thunderbolt
        for reading, _ in readings.nodes(now)
        if reading.thunderbolt is not None
    }
    return [list(loop) for loop in bridge_loops(bridges)]


def _hardware(reading: HardwareReading | None) -> dict[str, Any] | None:
    """Return the readings of a node's sensors; None without a recent reading."""
    return None if reading is None else reading.model_dump(mode="json", include=set(SENSED))


def _promised(state: ClusterState) -> defaultdict[str, int]:
    """Return the number of reserved bytes on each node."""
    promised: defaultdict[str, int] = defaultdict(int)
    for instance in state.instances.values():
        for shard in instance.shards:
            promised[shard.node] += shard.bytes_reserved
    return promised


def _node(
    node: str,
    seen: ClusterSeen,
    card: NodeCard | None,
    reading: NodeReading | None,
    age_s: float | None,
) -> SeenNode:
    record = seen.state.nodes.get(node)
    name = record.name if record is not None else "" if card is None else card.name
    return {
        "node": node,
        "name": name or node,
        "draining": record is not None and record.draining,
        "silent_s": None if age_s is None else round(age_s, 2),
        "health": node_health(reading, age_s or 0.0, seen.amiss if node == seen.node else ()),
        "cpu_ratio": reading and reading.cpu_ratio,
        "load_1m": reading and reading.load_1m,
        "memory_total_bytes": reading and reading.memory_total_bytes,
        "memory_available_bytes": reading and reading.memory_available_bytes,
        "disk_total_bytes": reading and reading.disk_total_bytes,
        "disk_free_bytes": reading and reading.disk_free_bytes,
    }


def _instance(instance: Instance, ranks: Sequence[RunnerReading]) -> SnapshotInstance:
    mine = [rank for rank in ranks if rank.instance == instance.instance]
    lead = next((rank for rank in mine if rank.rank == 0), None)
    active = {rank.rank: rank.active_bytes for rank in mine}
    return {
        "instance": instance.instance,
        "model": instance.model,
        "status": instance.status,
        "why": instance.why,
        "sharding": instance.sharding,
        "context_tokens": instance.context_tokens,
        "pinned": instance.pinned,
        "ranks": [
            {
                "rank": shard.rank,
                "node": shard.node,
                "first_layer": shard.first_layer,
                "last_layer": shard.last_layer,
                "promised_bytes": shard.bytes_reserved,
                "used_bytes": active.get(shard.rank),
            }
            for shard in instance.shards
        ],
        "phase": lead and lead.phase,
        "loaded_bytes": sum(rank.done_bytes for rank in mine),
        "to_load_bytes": sum(rank.total_bytes for rank in mine),
        "running": lead and lead.running,
        "waiting": lead and lead.waiting,
        "max_running": lead and lead.max_running,
        "generation_tokens_per_s": lead and lead.generation_tokens_per_s,
        "kv_bytes": lead and lead.kv_bytes,
        "kv_limit_bytes": lead and lead.kv_limit_bytes,
    }
