"""Commands to events: the holder's answer to each, as data.

Pure. A command that was decided before (its id is in the state) gets its first answer again.
A placement for which others have to make way is answered later: `Later` carries what is to
happen first, and the asker, who repeats every second, is answered when there is room. Refusals
are values and say what to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, assert_never

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId, is_model_id
from bus.wire.instances import Conditions, Instance, Shard
from bus.wire.messages.commands import (
    AddApiKey,
    Command,
    DeleteInstance,
    DeriveModel,
    DrainNode,
    ForgetDerived,
    ForgetNode,
    KeepAlive,
    PlaceModel,
    QuantizeModel,
    RemoveApiKey,
    RenameNode,
    RotateApiKey,
    RunCollectiveTest,
)
from bus.wire.messages.events import (
    EventBody,
    InstanceDraining,
    InstancePlaced,
    InstanceRemoved,
    KeepAliveSet,
)
from master import placement
from master.decisions.api_keys import decide_api_key
from master.decisions.collective_tests import decide_test
from master.decisions.derived import decide_derived
from master.decisions.evict import EVICT_DRAIN_S, Evictions, plan_evictions
from master.decisions.nodes import decide_node
from master.decisions.observations import Observations
from master.decisions.quantizing import decide_quantizing

FOR_EVER = -1.0
LIVING = ("placed", "ready")


@dataclass(frozen=True, slots=True)
class Decided:
    """Events to index, in order; the answer names the index of the last, and `instance`."""

    events: tuple[EventBody, ...]
    instance: InstanceId | None


@dataclass(frozen=True, slots=True)
class Known:
    """An answer without a change: what was asked for is so at `index` already."""

    index: int
    instance: InstanceId | None = None
    plan: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """Events to index first (perhaps none), until the asker repeats; `refusal` says why."""

    events: tuple[EventBody, ...]
    refusal: Refusal


Decision = Decided | Known | Later | Refusal


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's choices. `preload` are models that are never unloaded."""

    keep_alive_s: float = 300.0
    preload: tuple[ModelId, ...] = ()
    sizing: placement.RunnerSizing = field(default_factory=placement.RunnerSizing)


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a decision may look at. Before `settled_at` no other instance may be
    evicted, for the memory of the last one is still being measured. On nodes that are `avoided`
    nothing is placed."""

    state: ClusterState
    observed: Observations
    policy: Policy
    settled_at: float
    now: float
    avoided: frozenset[NodeId] = frozenset()

    def nodes(self) -> list[placement.NodeCapacity]:
        """Return the nodes that may be given new work: those that are neither drained nor lost."""
        cards, nodes = self.observed.living_cards(self.now), self.observed.living_nodes(self.now)
        drained = {known.node for known in self.state.nodes.values() if known.draining}
        without = drained | self.observed.lost_nodes(self.now) | self.avoided
        found = placement.node_capacities(cards, nodes, self.state.instances)
        return [node for node in found if node.id not in without]

    def models(self) -> frozenset[ModelId]:
        """Return the models on the disks of all nodes."""
        cards = self.observed.living_cards(self.now).values()
        return frozenset(one.model for card in cards for one in card.models)


def decide(command: Command, scene: Scene, fresh: InstanceId) -> Decision:
    """Return the decision on a command. `fresh` is an unused id for an instance that is placed."""
    known = scene.state.commands.get(command.command_id)
    if known is not None:
        index, instance = known
        return Known(index, None if instance is None else InstanceId(instance))
    match command:
        case PlaceModel():
            return _place(command, scene, fresh)
        case DeleteInstance():
            return _delete(command, scene.state)
        case KeepAlive():
            if command.instance not in scene.state.instances:
                return unknown_instance(command.instance, scene.state)
            body = KeepAliveSet(instance=command.instance, keep_alive_s=command.keep_alive_s)
            return Decided((body,), command.instance)
        case RenameNode() | DrainNode() | ForgetNode():
            bodies = decide_node(command, scene.state, scene.observed, scene.now)
            if isinstance(bodies, Refusal):
                return bodies
            return Decided(bodies, None) if bodies else Known(scene.state.index)
        case RunCollectiveTest() | QuantizeModel():
            bodies = _tried_once(command, scene, fresh)
            if isinstance(bodies, Refusal):
                return _still_gathering(scene) or bodies
            return Decided(bodies, fresh)
        case DeriveModel() | ForgetDerived():
            body = decide_derived(command, scene.state, scene.models())
            if isinstance(body, Refusal):
                return _still_gathering(scene) or body
            return Decided((body,), None)
        case AddApiKey() | RotateApiKey() | RemoveApiKey():
            body = decide_api_key(command, scene.state)
            return body if isinstance(body, Refusal) else Decided((body,), None)
        case _:
            assert_never(command)


def _tried_once(
    command: RunCollectiveTest | QuantizeModel, scene: Scene, fresh: InstanceId
) -> tuple[EventBody, ...] | Refusal:
    if isinstance(command, RunCollectiveTest):
        return decide_test(command, scene.nodes(), scene.state, fresh)
    return decide_quantizing(command, scene.nodes(), scene.state, fresh)


def living(state: ClusterState, model: ModelId) -> list[Instance]:
    """Return the instances of a model that are placed or ready, ready ones first."""
    held = (i for i in state.instances.values() if i.model == model and i.serves)
    found = [i for i in held if i.status in LIVING]
    return sorted(found, key=lambda one: one.status != "ready")


def instance_of(
    command: PlaceModel, placed: placement.Placement, policy: Policy, fresh: InstanceId
) -> Instance:
    """Return the instance that a placement makes, under the id `fresh`."""
    card = placed.card
    keep_alive_s = next(
        (s for s in (command.keep_alive_s, card.keep_alive_s) if s is not None),
        policy.keep_alive_s,
    )
    shards = tuple(
        Shard(
            rank=rank.rank,
            node=rank.copy.node.id,
            first_layer=rank.first_layer,
            last_layer=rank.last_layer,
            bytes_reserved=rank.reserved_bytes,
            backend=rank.copy.backend,
        )
        for rank in placed.ranks
    )
    return Instance(
        instance=fresh,
        model=card.model,
        shards=shards,
        sharding=placed.sharding,
        collectives=placed.collectives,
        backend=placed.lead.copy.backend,
        context_tokens=placed.context_tokens,
        keep_alive_s=FOR_EVER if command.pinned else keep_alive_s,
        pinned=command.pinned,
        priority=command.priority,
        conditions=conditions_of(command),
    )


def conditions_of(command: PlaceModel) -> Conditions:
    """Return the conditions of a command, for an instance to be placed again under the same."""
    return Conditions.model_validate(command, from_attributes=True)


def placement_again(instance: Instance, conditions: Conditions, why: str) -> PlaceModel:
    """Return the command that places a copy like this one under `conditions`; `why` is a word
    for its id, which is only a name."""
    return PlaceModel(
        command_id=CommandId(f"{why}-{instance.instance}"),
        model=instance.model,
        keep_alive_s=None if instance.pinned else instance.keep_alive_s,
        pinned=instance.pinned,
        priority=instance.priority,
        **dict(conditions),
    )


def unknown_instance(instance: InstanceId, state: ClusterState) -> Refusal:
    """Return the refusal of an unknown instance, which names those that there are."""
    there = ", ".join(sorted(state.instances)) or "none"
    return Refusal(
        reason="unknown_instance",
        message=f"no instance {instance}; there is: {there}",
        field="instance",
    )


def _place(command: PlaceModel, scene: Scene, fresh: InstanceId) -> Decision:
    if not is_model_id(command.model):
        return Refusal(
            reason="unknown_model",
            message=f"{command.model!r} is not the name of a model",
            field="model",
        )
    if command.if_absent and not command.dry_run:
        for instance in living(scene.state, command.model):
            if _meets(instance, command):
                return _kept(command, instance, scene.state)
    spec = placement.PlacementSpec(command.model, **dict(conditions_of(command)))
    nodes, links = scene.nodes(), placement.Links(scene.observed.living_links(scene.now))
    if command.dry_run and command.previews:
        found = placement.previews(spec, nodes, scene.policy.sizing, links)
        return found if isinstance(found, Refusal) else Known(scene.state.index, plan=found)
    verdict = placement.place(spec, nodes, scene.policy.sizing, links)
    if isinstance(verdict, placement.Crowded):
        return _crowded(command, verdict, scene)
    if isinstance(verdict, Refusal):
        return _still_gathering(scene) or verdict
    if command.dry_run:
        return Known(scene.state.index, plan=placement.plan_of(verdict, links))
    instance = instance_of(command, verdict, scene.policy, fresh)
    swept = tuple(
        InstanceRemoved(instance=old.instance, why="placed anew")
        for old in scene.state.instances.values()
        if old.model == command.model and old.status == "failed"
    )
    return Decided((*swept, InstancePlaced(instance=instance)), fresh)


def _still_gathering(scene: Scene) -> Refusal | None:
    """Return the refusal of a young holder that has not heard from all nodes yet, or None."""
    cards = scene.observed.living_cards(scene.now)
    missing = [known.name for node, known in scene.state.nodes.items() if NodeId(node) not in cards]
    if not missing or not scene.observed.gathering(scene.now):
        return None
    return Refusal(
        reason="pending",
        message=f"{', '.join(sorted(missing))} joined before and have not announced themselves yet",
        retry_after_s=placement.PENDING_RETRY_S,
    )


def _meets(instance: Instance, command: PlaceModel) -> bool:
    """Return whether an instance meets the conditions of a command."""
    by_hand = {
        str(shard.node): shard.last_layer - shard.first_layer for shard in reversed(instance.shards)
    }
    asked, same = list(command.layers.items()), instance.conditions.layers
    return (
        instance.context_tokens >= (command.context_tokens or 0)
        and len(instance.shards) >= command.min_nodes
        and command.sharding in (None, instance.sharding)
        and not any(shard.node in command.excluded_nodes for shard in instance.shards)
        and (not asked or asked in (list(by_hand.items()), list(same.items())))
    )


def _kept(command: PlaceModel, instance: Instance, state: ClusterState) -> Decision:
    """Return the decision to keep an instance; how long it stays may change."""
    asked_s = FOR_EVER if command.pinned else command.keep_alive_s
    if asked_s is None or asked_s == instance.keep_alive_s:
        return Known(state.index, instance.instance)
    body = KeepAliveSet(instance=instance.instance, keep_alive_s=asked_s)
    return Decided((body,), instance.instance)


def _crowded(command: PlaceModel, crowded: placement.Crowded, scene: Scene) -> Decision:
    evictions = plan_evictions(crowded, scene.state, scene.observed, command.priority, scene.now)
    if command.dry_run:
        evicted = [victim.instance for victim in evictions.victims]
        if evictions.enough:
            nodes = list(crowded.shortages)
            plan = {"model": command.model, "node": nodes[0], "nodes": nodes, "evicts": evicted}
            return Known(scene.state.index, plan={**plan, "why": crowded.refusal.message})
        return crowded.refusal
    if not evictions.enough and scene.now >= scene.settled_at:
        return crowded.refusal
    return Later(_evictions(evictions, command.model, scene), crowded.refusal)


def _evictions(evictions: Evictions, model: ModelId, scene: Scene) -> tuple[EventBody, ...]:
    """Return the next eviction: one at a time, none while a copy leaves or its memory settles."""
    if evictions.leaving or not evictions.victims or scene.now < scene.settled_at:
        return ()
    victim = evictions.victims[0].instance
    why = f"makes way for {model}"
    return (InstanceDraining(instance=victim, deadline_s=EVICT_DRAIN_S, why=why),)


def _delete(command: DeleteInstance, state: ClusterState) -> Decision:
    instance = state.instances.get(command.instance)
    if instance is None:
        return unknown_instance(command.instance, state)
    if instance.status == "draining" and (instance.drain_deadline_s or 0.0) <= command.drain_s:
        return Known(state.index, instance.instance)
    body = InstanceDraining(instance=command.instance, deadline_s=command.drain_s, why=command.why)
    return Decided((body,), command.instance)
