"""What a holder sees, put together by hand: copies, the cards and readings of two nodes, demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.replica.state import ClusterState
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankReady, Shard
from bus.wire.messages.readings import (
    CardReading,
    DemandReading,
    ModelDemand,
    NodeReading,
    RunnerReading,
)
from master.decisions.decide import Policy, Scene
from master.decisions.observations import Observations

GB = 10**9
A, B, N1, N2, NOW = ModelId("a"), ModelId("b"), NodeId("n1"), NodeId("n2"), 100.0
COUNTS = (
    "waiting", "max_running", "max_waiting", "prompt_tokens", "generation_tokens", "kv_bytes",
    "kv_limit_bytes", "prefix_bytes", "prefix_hits", "prefix_hit_tokens", "preemptions",
    "active_bytes", "peak_bytes", "step", "prompt_tokens_per_s", "generation_tokens_per_s",
    "step_ms",
)  # fmt: skip


def copy(name: str = "i", *ready: int, nodes: tuple[NodeId, ...] = (N1,), **more: Any) -> Instance:
    """A copy of a gigabyte on each node, of which those ranks are `ready`."""
    shards = tuple(
        Shard(rank=n, node=node, first_layer=n, last_layer=n + 1, bytes_reserved=GB)
        for n, node in enumerate(nodes)
    )
    ranks = tuple(
        RankReady(rank=n, node=nodes[n], process=f"runner:{name}", addresses=("x",), pid=1)
        for n in ready
    )
    fields = {"model": A, "status": "placed", "context_tokens": 8, "keep_alive_s": 9.0, **more}
    return Instance(instance=InstanceId(name), shards=shards, ready=ranks, **fields)


def ready(name: str = "i", **more: Any) -> Instance:
    """A copy whose first rank is ready."""
    return copy(name, 0, **{"status": "ready", **more})


def state_of(*instances: Instance, **more: Any) -> ClusterState:
    return ClusterState(instances={one.instance: one for one in instances}, **more)


def on_disk(name: str, gigabytes: int = 1, **more: Any) -> ModelCard:
    """A model that goes on one node."""
    size = gigabytes * GB
    return ModelCard(
        model=ModelId(name), path="/m", family="qwen3", layers=4, weights_bytes=size,
        size_bytes=size, kv_bytes_per_token=1_000, context_tokens=4_096, vocabulary=100,
        unsplit_because="it is in one piece", **more,
    )  # fmt: skip


def seen(
    state: ClusterState,
    *,
    disks: Mapping[NodeId, tuple[ModelCard, ...]] | None = None,
    policy: Policy | None = None,
    free: int = 12 * GB,
) -> Scene:
    """What a holder sees that has heard of two nodes of 12 GB for models, or of those whose
    `disks` are told."""
    view = Observations()
    for node, models in (dict.fromkeys((N1, N2), ()) if disks is None else disks).items():
        card = NodeCard(
            node=node, name=f"box-{node}", platform="linux", cores=1, memory_bytes=16 * GB,
            backends=("mlx-cpu",), mlx_version="", shoal_version="", slots=4, announced_at_s=1.0,
            ttl_s=1e6, models=models,
        )  # fmt: skip
        view.hear(CardReading(card=card), NOW)
        measured = NodeReading(
            node=node, memory_total_bytes=16 * GB, memory_available_bytes=free, cpu_ratio=0.0,
            load_1m=0.0, disk_total_bytes=1, disk_free_bytes=1, measured_at_s=1.0,
        )  # fmt: skip
        view.hear(measured, NOW)
    return Scene(state, view, policy or Policy(), NOW)


def demand(scene: Scene, **priorities: int) -> Scene:
    """The scene, in which models are waited for at a gateway."""
    models = tuple(
        ModelDemand(model=ModelId(name), waiting=1, best_priority=priority, oldest_s=1.0)
        for name, priority in priorities.items()
    )
    scene.observed.hear(DemandReading(node=N1, process="gateway", models=models), scene.now)
    return scene


def use(scene: Scene, instance: Instance, *, idle_s: float = 0.0, running: int = 0) -> None:
    """Have a copy's lead runner say how it is used."""
    told = RunnerReading(
        node=instance.shards[0].node, process=f"runner:{instance.instance}",
        instance=instance.instance, model=instance.model, generation=instance.generation,
        phase="ready", running=running, best_waiting_priority=None, last_used_ago_s=idle_s,
        **dict.fromkeys(COUNTS, 0),
    )  # fmt: skip
    scene.observed.hear(told, scene.now)
