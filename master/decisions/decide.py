"""The leader's decision on each command: the events that carry it out, or a refusal.

Pure. A repeated command (its id is in the state) gets its first decision again. A placement that
needs evictions is decided later: `Later` has the nodes and the instances to evict. The client
repeats its command every second, and is answered once the memory is free. Refusals are values and
say what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from bus.replica.state import ClusterState
from bus.wire.cards import ModelKind, models_of
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, NodeId, is_model_id
from bus.wire.instances import Instance
from bus.wire.messages.commands import (
    AddApiKey,
    AllowCloudFallback,
    AskLeaseBack,
    Command,
    DeleteInstance,
    DeriveModel,
    DrainNode,
    EndLease,
    ForgetDerived,
    ForgetNode,
    KeepAlive,
    PinModel,
    PlaceModel,
    QuantizeModel,
    RemoveApiKey,
    RenameNode,
    RenewLease,
    RotateApiKey,
    RunCollectiveTest,
    SetTracing,
    TakeLease,
)
from bus.wire.messages.events import (
    CloudFallbackAllowed,
    EventBody,
    InstanceDraining,
    InstancePlaced,
    InstanceRemoved,
    KeepAliveSet,
    ModelPinned,
    TracingSet,
)
from master import placement, pool
from master.decisions.api_keys import decide_api_key
from master.decisions.collective_tests import decide_test
from master.decisions.crash_loop import NodeRow
from master.decisions.derived import decide_derived
from master.decisions.leasing import decide_lease, take_lease
from master.decisions.nodes import decide_node
from master.decisions.observations import Observations
from master.decisions.pool_view import (
    choose,
    choose_as_it_can_be,
    claim_of,
    conditions_of,
    decide_pin,
    instance_of,
    is_kept,
    living,
    on_lost_nodes,
    pinned_by_cards,
    spec_of,
)
from master.decisions.quantizing import decide_quantizing

FOR_EVER = -1.0
NORMAL = 10


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision: events to append. The reply has the index of the last one, and `instance`."""

    events: tuple[EventBody, ...]
    instance: InstanceId | None


@dataclass(frozen=True, slots=True)
class Known:
    """A decision without a change: the requested state already exists, at log index `index`."""

    index: int
    instance: InstanceId | None = None
    plan: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """A decision to wait: the instances in `choice` must first be evicted for the demand
    `claim`."""

    claim: pool.Claim
    choice: pool.PoolChoice

    @property
    def refusal(self) -> Refusal:
        """Return why the placement is not possible now."""
        why = "; ".join(o.yielding.why for o in self.choice.victims if o.yielding.why)
        refusal = self.choice.refusal or Refusal(reason="no_capacity", message="memory is short")
        text = f"{refusal.message}; {why}" if why else refusal.message
        return Refusal(
            reason="no_capacity", message=text, retry_after_s=pool.ROOM_RETRY_S, facts=refusal.facts
        )


Decision = Decided | Known | Later | Refusal
Barred = Mapping[ModelId, Mapping[NodeId, NodeRow]]


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's settings. `preload`: models that are never unloaded. `keep_alive_s`: for idle
    models of a kind that has no time of its own."""

    keep_alive_s: float = 300.0
    keep_alive_by_kind: Mapping[ModelKind, float] = field(default_factory=dict[ModelKind, float])
    preload: tuple[ModelId, ...] = ()
    sizing: placement.RunnerSizing = field(default_factory=placement.RunnerSizing)
    pool: pool.PoolSettings = field(default_factory=pool.PoolSettings)


@dataclass(frozen=True, slots=True)
class Scene:
    """The input of a decision.

    Nothing is placed on `avoided` nodes. Memory that is reserved for other models, or was freed for
    them by evictions, is not free. A model is not placed on a node that is `barred` for it, because
    its runners failed there, unless the client `insists` and no other node can hold the model.
    `relaxes`: if a placement is impossible, drop its conditions on the number of nodes and on
    sharding.
    """

    state: ClusterState
    observed: Observations
    policy: Policy
    now: float
    avoided: frozenset[NodeId] = frozenset()
    tenure: pool.Tenure = field(default_factory=pool.Tenure)
    promises: tuple[pool.Promise, ...] = ()
    leases: pool.LeaseNotes = field(default_factory=pool.LeaseNotes)
    barred: Barred = field(default_factory=dict[ModelId, Mapping[NodeId, NodeRow]])
    insists: bool = False
    relaxes: bool = False

    def nodes(self) -> list[placement.NodeCapacity]:
        """Return the nodes that take new work, less the memory reserved for other models."""
        return pool.reserve(self.unpromised_nodes(), self.promises)

    def unpromised_nodes(self) -> list[placement.NodeCapacity]:
        """Return the nodes that take new work (neither drained nor lost), ignoring reservations."""
        cards, nodes = self.observed.living_cards(self.now), self.observed.living_nodes(self.now)
        drained = {seat.node for seat in self.state.nodes.values() if seat.draining}
        without = drained | self.observed.lost_nodes(self.now) | self.avoided
        leased = self.leases.memory(self.state)
        capacities = placement.node_capacities(cards, nodes, self.state.instances, leased)
        return [node for node in capacities if node.id not in without]

    def models(self) -> frozenset[ModelId]:
        """Return the models on the disks of all nodes."""
        return frozenset(models_of(self.observed.living_cards(self.now).values()))


def decide(command: Command, scene: Scene, fresh: InstanceId) -> Decision:
    """Return the decision on a command. `fresh` is an unused id for a new instance."""
    earlier = scene.state.commands.get(command.command_id)
    if earlier is not None:
        index, instance = earlier
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
        case PinModel():
            return _pin(command, scene)
        case RenameNode() | DrainNode() | ForgetNode():
            bodies = decide_node(command, scene.state, scene.observed, scene.now)
            if isinstance(bodies, Refusal):
                return bodies
            return Decided(bodies, None) if bodies else Known(scene.state.index)
        case RunCollectiveTest() | QuantizeModel():
            return _tried_once(command, scene, fresh)
        case TakeLease():
            lease = take_lease(command, scene)
            if isinstance(lease, pool.PoolChoice):
                return Later(claim_of(scene, command), lease)
            return _decision_of(lease, scene)
        case RenewLease() | AskLeaseBack() | EndLease():
            return _decision_of(decide_lease(command, scene.state), scene)
        case DeriveModel() | ForgetDerived():
            return _decision_of(decide_derived(command, scene.state, scene.models()), scene)
        case AddApiKey() | RotateApiKey() | RemoveApiKey():
            body = decide_api_key(command, scene.state)
            return body if isinstance(body, Refusal) else Decided((body,), None)
        case SetTracing(ratio=ratio):
            same = scene.state.trace_ratio == ratio
            return Known(scene.state.index) if same else Decided((TracingSet(ratio=ratio),), None)
        case AllowCloudFallback(allowed=allowed):
            if allowed == scene.state.cloud_fallback:
                return Known(scene.state.index)
            return Decided((CloudFallbackAllowed(allowed=allowed),), None)
        case _:
            assert_never(command)


def _decision_of(body: EventBody | Refusal | None, scene: Scene) -> Decision:
    """Return the decision for one event or none. A new leader refuses until it knows all nodes."""
    if isinstance(body, Refusal):
        return _still_gathering(scene) or body
    return Known(scene.state.index) if body is None else Decided((body,), None)


def _tried_once(
    command: RunCollectiveTest | QuantizeModel, scene: Scene, fresh: InstanceId
) -> Decision:
    if isinstance(command, RunCollectiveTest):
        bodies = decide_test(command, scene.nodes(), scene.state, fresh)
    else:
        bodies = decide_quantizing(command, scene.nodes(), scene.state, fresh)
    if isinstance(bodies, Refusal):
        return _still_gathering(scene) or bodies
    return Decided(bodies, fresh)


def unknown_instance(instance: InstanceId, state: ClusterState) -> Refusal:
    """Return the refusal of an unknown instance; it lists the existing ones."""
    there = ", ".join(sorted(state.instances)) or "none"
    return Refusal(
        reason="unknown_instance",
        message=f"no instance {instance}; existing instances: {there}",
        field="instance",
    )


def _place(command: PlaceModel, scene: Scene, fresh: InstanceId) -> Decision:
    if not is_model_id(command.model):
        return Refusal(
            reason="unknown_model",
            message=f"{command.model!r} is not a valid model name",
            field="model",
        )
    if command.if_absent and not command.dry_run:
        for instance in living(scene.state, command.model):
            if _meets(instance, command):
                return _keep_instance(command, instance, scene.state)
    spec = spec_of(scene, command.model, conditions_of(command))
    links = placement.Links(scene.observed.living_links(scene.now))
    if command.supposed is not None and not (command.dry_run and command.previews):
        text = "`supposed` requires `dry_run` and `previews`"
        return Refusal(reason="bad_request", message=text, field="supposed")
    if command.dry_run and command.previews:
        return _preview(command, spec, scene, links)
    claim = claim_of(scene, command)
    chosen, unmet = choose_as_it_can_be(scene, spec, claim)
    if isinstance(chosen, Refusal):
        return _still_gathering(scene) or on_lost_nodes(command.model, chosen, scene)
    if chosen.placement is None:
        later = Later(claim, chosen)
        return Known(scene.state.index, plan=_eviction(later)) if command.dry_run else later
    if command.dry_run:
        return Known(scene.state.index, plan=placement.plan_of(chosen.placement, links))
    instance = instance_of(command, chosen.placement, scene.policy, fresh)
    instance = instance.model_copy(update={"unmet": unmet}) if unmet else instance
    swept = tuple(
        InstanceRemoved(instance=old.instance, why="a new placement replaces it")
        for old in scene.state.instances.values()
        if old.model == command.model and old.status == "failed"
    )
    return Decided((*swept, InstancePlaced(instance=instance)), fresh)


def _preview(
    command: PlaceModel, spec: placement.PlacementSpec, scene: Scene, links: placement.Links
) -> Decision:
    """Return every way to place a model. With `command.supposed`, the model is placed as if the
    node that it names already had the model, or as if every node could fetch its layers. It is
    called impossible only after all nodes have reported."""
    nodes, supposed = scene.nodes(), command.supposed
    if supposed is not None and supposed.by_layers:
        nodes, spec = placement.offering(nodes, spec, supposed.card)
    elif supposed is not None:
        nodes = placement.supposing(nodes, supposed.node, supposed.card)
    preview = placement.previews(spec, nodes, scene.policy.sizing, links)
    if isinstance(preview, Refusal):
        return preview
    if supposed is not None and preview["chosen"] is None:
        gathering = _still_gathering(scene)
        if gathering is not None:
            return gathering
    return Known(scene.state.index, plan=preview)


def _still_gathering(scene: Scene) -> Refusal | None:
    """Return the refusal of a new leader that has not received a message of each known node yet;
    None if it has."""
    cards = scene.observed.living_cards(scene.now)
    there = {*cards, *scene.observed.left_nodes(scene.now)}
    missing = [seat.name for node, seat in scene.state.nodes.items() if NodeId(node) not in there]
    if not missing or not scene.observed.gathering(scene.now):
        return None
    return Refusal(
        reason="pending",
        message=f"waiting for known nodes to announce themselves: {', '.join(sorted(missing))}",
        retry_after_s=placement.PENDING_RETRY_S,
    )


def _meets(instance: Instance, command: PlaceModel) -> bool:
    """Return whether an instance already meets the conditions of a command to place its model."""
    by_hand = {
        str(shard.node): shard.last_layer - shard.first_layer for shard in reversed(instance.shards)
    }
    layers = list(command.layers.items())
    same = {} if instance.unmet else instance.conditions.layers
    return (
        instance.context_tokens >= (command.context_tokens or 0)
        and len(instance.shards) >= command.min_nodes
        and command.kv in (None, instance.kv)
        and command.sharding in (None, instance.sharding)
        and not any(shard.node in command.excluded_nodes for shard in instance.shards)
        and (not layers or layers in (list(by_hand.items()), list(same.items())))
    )


def _keep_instance(command: PlaceModel, instance: Instance, state: ClusterState) -> Decision:
    """Return the decision to keep an instance; its keep-alive time may change."""
    asked_s = command.keep_alive_s
    if asked_s is None or asked_s == instance.keep_alive_s:
        return Known(state.index, instance.instance)
    body = KeepAliveSet(instance=instance.instance, keep_alive_s=asked_s)
    return Decided((body,), instance.instance)


def _eviction(later: Later) -> dict[str, Any]:
    """Return, for a dry run, the plan of a placement that needs evictions."""
    nodes = list(later.choice.needs)
    return {
        "model": later.claim.model,
        "node": nodes[0],
        "nodes": nodes,
        "evicts": [victim.copy.instance.instance for victim in later.choice.victims],
        "why": later.refusal.message,
    }


def _pin(command: PinModel, scene: Scene) -> Decision:
    """Return the decision on a pin. A model that can't fit beside the other pins is refused."""
    by_card = pinned_by_cards(scene).get(command.model, False)
    decision = decide_pin(command, scene.state, scene.models(), by_card=by_card)
    if not isinstance(decision, ModelPinned):
        return _decision_of(decision, scene)
    if not living(scene.state, command.model):
        claim = pool.Claim(command.model, ((NORMAL, scene.now),), "pin")
        never = choose(scene, spec_of(scene, command.model), claim)
        if isinstance(never, Refusal) and never.retry_after_s is None:
            return _still_gathering(scene) or never
    return Decided((decision,), None)


def _delete(command: DeleteInstance, state: ClusterState) -> Decision:
    instance = state.instances.get(command.instance)
    if instance is None:
        return unknown_instance(command.instance, state)
    if (refusal := is_kept(instance, state)) is not None:
        return refusal
    if instance.status == "draining" and (instance.drain_deadline_s or 0.0) <= command.drain_s:
        return Known(state.index, instance.instance)
    body = InstanceDraining(instance=command.instance, deadline_s=command.drain_s, why=command.why)
    return Decided((body,), command.instance)
