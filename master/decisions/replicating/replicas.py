"""Decides when a model under load gets a replica on an idle node, and when the replica ends.

Pure. Nothing is evicted for a replica. It must not take memory that others need. So no replica is
placed while a model or a lease waits for memory, or a lost or failed instance waits to be placed. A
new leader places none before all nodes have reported. A replica takes one node, on which no
instance is in use or loading.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bus.replica.state import ClusterState
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.events import InstanceDraining, InstancePlaced
from master import pool
from master.decisions.pool_view import (
    choose,
    claim_of,
    copies_of,
    instance_of,
    living,
    placement_again,
    spec_of,
)
from master.decisions.stand_ins import lost_copies
from master.placement import Placement, read_s_per_byte

if TYPE_CHECKING:
    from master.decisions.decide import Scene

SLOWEST = 3.0
"""A replica is not placed if it would read its weights more than this many times slower than the
first instance."""
DRAIN_S = 600.0
"""How long, in seconds, the open requests of a replica may still run when the replica is
removed."""


def replicate(
    scene: Scene, meters: pool.LoadMeters, book: pool.PlanBook, fresh: Callable[[], InstanceId]
) -> list[InstanceDraining | InstancePlaced]:
    """Return the events that drain replicas which are no longer needed. If a new replica is due and
    memory is free, also return the event that places it, with the id `fresh`. Also updates the load
    meters."""
    copies = copies_of(scene)
    loads = pool.loads_of(copies, scene.observed.demand(scene.now))
    meters.look(loads, scene.policy.pool, scene.now)
    replicas = {copy.instance.instance: copy.replica for copy in copies if copy.replica}
    gone = pool.over(scene.state, replicas, meters, scene.policy.pool)
    events: list[InstanceDraining | InstancePlaced] = [
        InstanceDraining(instance=name, deadline_s=DRAIN_S, why=why) for name, why in gone.items()
    ]
    due = pool.due(scene.state, loads, meters, scene.policy.pool)
    if due and not (book.plans or book.refused or _others_come_back(scene)):
        placed = _place_first({model: loads[model] for model in due}, scene, fresh)
        events += [] if placed is None else [placed]
    return events


def as_it_stands(
    name: InstanceId, state: ClusterState, quiet: Collection[NodeId]
) -> Instance | None:
    """Return the instance with this id; None if there is none. If it was added as a replica but no
    other instance of its model answers, it is returned without the mark of a replica."""
    instance = state.instances.get(name)
    if instance is None or name in pool.replicas_in(state.instances.values(), quiet):
        return instance
    return instance.model_copy(update={"replica": ""})


def _place_first(
    due: Mapping[ModelId, pool.ModelLoad], scene: Scene, fresh: Callable[[], InstanceId]
) -> InstancePlaced | None:
    """Return the event that places a replica of the first model for which there is memory; None if
    there is memory for no model."""
    settings = scene.policy.pool
    for model, load in due.items():
        copies = "instance was" if load.copies == 1 else f"{load.copies} instances were"
        why = f"its {copies} overloaded for {settings.replica_after_s:.0f} s"
        placed = _placed(model, f"{why}: {load.rows} requests", scene, fresh)
        if placed is not None:
            return placed
    return None


def _placed(
    model: ModelId, why: str, scene: Scene, fresh: Callable[[], InstanceId]
) -> InstancePlaced | None:
    """Return the event that places a replica, under the same conditions as the first instance, on
    an idle node without an instance of the model. None if no such node has enough memory."""
    first = living(scene.state, model)[0]
    alike = {"context_tokens": first.context_tokens, "kv": first.kv}
    alone: dict[str, Any] = {"min_nodes": 1, "sharding": None, "layers": {}}
    single = first.conditions.model_copy(update={**alike, **alone})
    command = placement_again(first, single, "replica").model_copy(update={"pinned": False})
    spec = spec_of(scene, model, single)
    free = replace(scene, avoided=scene.avoided | _busy_nodes(model, scene))
    choice = choose(free, spec, claim_of(free, command))
    if not isinstance(choice, pool.PoolChoice) or choice.placement is None or len(choice.needs) > 1:
        return None
    if _is_slow(choice.placement, first, scene):
        return None
    if scene.tenure.unsettled(choice.needs, scene.observed.measured_at, scene.now):
        return None
    instance = instance_of(command, choice.placement, scene.policy, fresh())
    return InstancePlaced(instance=instance.model_copy(update={"replica": why}))


def _is_slow(placed: Placement, first: Instance, scene: Scene) -> bool:
    """Return whether the replica's node takes more than `SLOWEST` times as long to read weights as
    the slowest node of the first instance. False if none of that instance's nodes is known."""
    nodes = {node.id: node for node in scene.unpromised_nodes()}
    there = [read_s_per_byte(nodes[s.node], s.backend) for s in first.shards if s.node in nodes]
    copy = placed.lead.copy
    return bool(there) and read_s_per_byte(copy.node, copy.backend) > SLOWEST * max(there)


def _busy_nodes(model: ModelId, scene: Scene) -> frozenset[NodeId]:
    """Return the nodes that take no replica: they have an instance of its model, or another
    instance that is in use, loading or draining."""
    return frozenset(
        shard.node
        for copy in copies_of(scene)
        if copy.instance.model == model
        or copy.instance.status != "ready"
        or pool.is_in_use(copy, scene.now)
        for shard in copy.instance.shards
    )


def _others_come_back(scene: Scene) -> bool:
    """Return whether other instances wait to be placed again, or may be on nodes that have not
    reported yet."""
    heard = scene.observed.living_cards(scene.now)
    is_young = scene.observed.gathering(scene.now)
    if is_young and any(NodeId(node) not in heard for node in scene.state.nodes):
        return True
    instances = scene.state.instances.values()
    waits = any(
        instance.status == "failed" and instance.place_again is not None for instance in instances
    )
    return waits or bool(lost_copies(scene))
