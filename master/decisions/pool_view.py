"""Prepares what the pool needs for a decision (instances and claims on memory), and chooses the
nodes for a model. Also decides commands about pins.

Pure. A pin belongs to a model, loaded or not: it survives its instance, its node and the leader. No
command unloads a pinned model, and it is placed again if it has no instance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Conditions, Instance, Shard
from bus.wire.messages.commands import PinModel, PlaceModel, TakeLease
from bus.wire.messages.events import ModelPinned, ModelUnpinned
from bus.wire.messages.readings import ModelDemand
from bus.wire.pool import MAX_PINS, Pin
from master import placement, pool

if TYPE_CHECKING:
    from master.decisions.decide import Policy, Scene

UNHEARD_RETRY_S = 30.0
LEAST_LOAD_S, LOADED_PER_S = 1.5, 1e9
"""Assumed time to load a model before it was measured: `LEAST_LOAD_S`, plus bytes divided by
`LOADED_PER_S`."""
LIVING = ("placed", "ready")
BY_CARD = "its card.toml"
"""The name shown as the owner of a pin that a model's own `card.toml` requires."""


def copies_of(scene: Scene) -> list[pool.Copy]:
    """Return the instances that are in memory or loading."""
    demand = scene.observed.demand(scene.now)
    instances = scene.state.instances.values()
    quiet = scene.observed.quiet_nodes(scene.state.nodes, scene.now)
    replicas = pool.replicas_in(instances, quiet)
    return [
        pool.Copy(
            instance=instance,
            use=scene.observed.use_of(instance, scene.now),
            ready_at=scene.tenure.ready_at.get(instance.instance),
            load_s=_load_s(scene, instance.model, sum(s.bytes_reserved for s in instance.shards)),
            pinned_by=None
            if instance.instance in replicas
            else pool.pinned_by(instance, scene.state),
            waiting=_demanded(demand[instance.model], scene.now)
            if instance.model in demand
            else None,
            replica=replicas.get(instance.instance, ""),
        )
        for instance in instances
        if instance.status != "failed"
    ]


def claim_of(scene: Scene, command: PlaceModel | TakeLease) -> pool.Claim:
    """Return the claim (demand for memory) behind a placement or a lease. It is that of the
    requests that wait for the model at gateways, else that of the client that asked for the
    placement."""
    model = command.model
    since_at = scene.tenure.wished_at.get(model, scene.now)
    if isinstance(command, TakeLease):
        return pool.Claim(model, ((command.priority, since_at),), "lease")
    demand = scene.observed.demand(scene.now).get(model)
    if demand is not None:
        return _demanded(demand, scene.now)
    kind = "pin" if model in scene.state.pins else "asked"
    return pool.Claim(model, ((command.priority, since_at),), kind)


def choose(
    scene: Scene, spec: placement.PlacementSpec, claim: pool.Claim
) -> pool.PoolChoice | Refusal:
    """Return the nodes for a model and the instances that are evicted for it, or a refusal. A node
    on which the model's runners failed is considered only later, unless the client insists on it.
    """
    choice = _chosen(scene, spec, claim)
    if not spec.barred or not isinstance(choice, Refusal) or choice.retry_after_s is not None:
        return choice
    anywhere = _chosen(scene, replace(spec, barred={}), claim)
    if isinstance(anywhere, Refusal):
        return anywhere
    if scene.insists:
        return anywhere
    again_s = min(row.until for row in scene.barred[spec.model].values()) - scene.now
    facts = {**choice.facts, "given_up": True}
    update = {"reason": "not_ready", "field": None, "retry_after_s": again_s, "facts": facts}
    return choice.model_copy(update=update)


def spec_of(
    scene: Scene, model: ModelId, conditions: Conditions | None = None
) -> placement.PlacementSpec:
    """Return a placement's conditions, and the nodes excluded because the model failed on them."""
    barred = {
        node: f"is in cooldown for {row.until - scene.now:.0f} s after its runner failed: {row.why}"
        for node, row in scene.barred.get(model, {}).items()
    }
    return placement.PlacementSpec(model, **dict(conditions or Conditions()), barred=barred)


def _chosen(
    scene: Scene, spec: placement.PlacementSpec, claim: pool.Claim
) -> pool.PoolChoice | Refusal:
    everyone, candidates = _victims(scene, claim)
    choice = pool.choose(
        spec,
        scene.nodes(),
        scene.policy.sizing,
        placement.Links(scene.observed.living_links(scene.now)),
        candidates,
        unpromised=scene.unpromised_nodes(),
        everyone=everyone,
    )
    if isinstance(choice, pool.PoolChoice):
        return replace(choice, load_s=_load_s(scene, spec.model, sum(choice.needs.values())))
    return _refusal(choice, scene)


def choose_as_it_can_be(
    scene: Scene, spec: placement.PlacementSpec, claim: pool.Claim
) -> tuple[pool.PoolChoice | Refusal, str]:
    """Return the nodes for a model, or a refusal. Conditions that may be dropped are dropped if
    necessary, and are returned as well."""
    chosen = choose(scene, spec, claim)
    if not scene.relaxes or not _is_bound(spec) or _is_placed(chosen):
        return chosen, ""
    anyhow = choose(scene, replace(spec, min_nodes=1, sharding=None, layers={}), claim)
    return (anyhow, _unmet(spec, chosen)) if _is_placed(anyhow) else (chosen, "")


def on_lost_nodes(model: ModelId, refusal: Refusal, scene: Scene) -> Refusal:
    """Return the refusal of a model that is on no node's disk; if silent nodes have it, name
    them."""
    names = [
        card.name
        for card in scene.observed.unheard_cards(scene.now)
        if any(model_card.model == model for model_card in (*card.models, *card.parts))
    ]
    if refusal.reason != "unknown_model" or not names:
        return refusal
    text = f"{model} is only on {', '.join(names)}, and no message arrives from there"
    return Refusal(
        reason="not_ready", message=text, retry_after_s=UNHEARD_RETRY_S, facts={"given_up": True}
    )


def _is_bound(spec: placement.PlacementSpec) -> bool:
    return spec.min_nodes > 1 or spec.sharding is not None or bool(spec.layers)


def _is_placed(chosen: pool.PoolChoice | Refusal) -> bool:
    return isinstance(chosen, pool.PoolChoice) and chosen.placement is not None


def _unmet(spec: placement.PlacementSpec, chosen: pool.PoolChoice | Refusal) -> str:
    """Return the placement conditions that are not met, and the reason."""
    unmet = [
        *([f"min_nodes {spec.min_nodes}"] if spec.min_nodes > 1 else []),
        *([f"sharding {spec.sharding}"] if spec.sharding is not None else []),
        *(
            [f"layers {', '.join(f'{n} on {k}' for k, n in spec.layers.items())}"]
            * bool(spec.layers)
        ),
    ]
    refusal = chosen if isinstance(chosen, Refusal) else chosen.refusal
    why = "other models would have to be evicted" if refusal is None else refusal.message
    return f"{', '.join(unmet)} cannot be met after the loss of a node: {why}"


def room_for(scene: Scene, command: TakeLease) -> pool.PoolChoice | Refusal:
    """Return the node that reserves the memory of a lease, and the instances that are evicted for
    it, or a refusal."""
    everyone, candidates = _victims(scene, claim_of(scene, command))
    nodes, unpromised = scene.nodes(), scene.unpromised_nodes()
    if command.node is not None:
        nodes = [node for node in nodes if node.id == command.node]
        unpromised = [capacity for capacity in unpromised if capacity.id == command.node]
        if not nodes:
            text = f"{command.node} takes no new work: it is drained, lost or unknown"
            return Refusal(reason="unknown_node", message=text, field="node")
    choice = pool.choose_room(
        command.size_bytes, nodes, candidates, unpromised=unpromised, everyone=everyone
    )
    return choice if isinstance(choice, pool.PoolChoice) else _refusal(choice, scene)


def _victims(scene: Scene, claim: pool.Claim) -> tuple[list[pool.Victim], list[pool.Victim]]:
    """Return two lists of possible victims of a claim: all instances, and only the instances that
    are not yet reserved for another claim."""
    settings, now = scene.policy.pool, scene.now
    everyone = [
        pool.victim(copy, pool.yielding(copy, claim, settings, now), now)
        for copy in copies_of(scene)
    ]
    claimed = {copy.instance for promise in scene.promises for copy in promise.leaving}
    return everyone, [victim for victim in everyone if victim.copy.instance.instance not in claimed]


def _with_held_back(refusal: Refusal, scene: Scene) -> Refusal:
    """Return a refusal that also names the nodes that take no model because of wired memory."""
    held = [seat for seat in scene.state.nodes.values() if seat.draining and seat.wired_bytes]
    if not held:
        return refusal
    drained = "; ".join(
        f"{seat.name} takes no model because {placement.gb(seat.wired_bytes)} GB stay wired there "
        f"without one: reboot to free them, or load anyway with `shoal nodes undrain {seat.name}`"
        for seat in held
    )
    return refusal.model_copy(update={"message": f"{refusal.message}; {drained}"})


def _refusal(answer: Refusal | pool.Hopeless, scene: Scene) -> Refusal:
    """Return why the model cannot be placed. If memory is missing, the reason lists the leases that
    reserve some."""
    refusal = _with_held_back(
        answer.refusal if isinstance(answer, pool.Hopeless) else answer, scene
    )
    leases = scene.state.leases.values()
    if refusal.reason != "no_capacity" or not leases:
        return refusal
    names = {str(seat.node): seat.name for seat in scene.state.nodes.values()}
    leased = [
        f"{placement.gb(lease.size_bytes)} GB on {names.get(lease.node, lease.node)} to "
        f"{lease.owner or 'someone'} ({lease.lease})"
        for lease in leases
    ]
    text = f"{refusal.message}; leased: {', '.join(leased)}"
    return refusal.model_copy(update={"message": text})


def pinned_by_cards(scene: Scene, among: Iterable[ModelId] = ()) -> dict[ModelId, bool]:
    """Return whether the newest `card.toml` pins a model, for the models of `among` on living nodes
    and for all models that a `card.toml` pins."""
    cards = scene.observed.living_cards(scene.now).values()
    models = set(among) | {
        model_card.model for card in cards for model_card in card.models if model_card.pin
    }
    newest: dict[ModelId, tuple[float, bool]] = {}
    for card in cards if models else ():
        for model_card in card.models:
            stamp = model_card.card_at_s, model_card.pin
            if model_card.model in models and stamp > newest.get(
                model_card.model, (-math.inf, False)
            ):
                newest[model_card.model] = stamp
    return {model: pin for model, (_, pin) in newest.items()}


def pins_of_cards(scene: Scene) -> list[PinModel]:
    """Return the commands that pin and unpin models as their `card.toml` files require; the command
    ids are only labels. A pin is removed if the model's `card.toml` no longer has it, but only
    while every joined node reports, because a missing node may have the newest `card.toml`."""
    state = scene.state
    mine = [ModelId(model) for model, pin in state.pins.items() if pin.by == BY_CARD]
    heard = scene.observed.living_cards(scene.now)
    is_whole = all(NodeId(node) in heard for node in state.nodes)
    return [
        PinModel(command_id=CommandId(f"card-{model}"), model=model, pinned=pinned, by=BY_CARD)
        for model, pinned in pinned_by_cards(scene, mine).items()
        if (pinned and model not in state.pins) or (not pinned and model in mine and is_whole)
    ]


def living(state: ClusterState, model: ModelId) -> list[Instance]:
    """Return the placed or ready instances of a model, ready ones first."""
    held = (i for i in state.instances.values() if i.model == model and i.serves)
    instances = [i for i in held if i.status in LIVING]
    return sorted(instances, key=lambda instance: instance.status != "ready")


def instance_of(
    command: PlaceModel, placed: placement.Placement, policy: Policy, fresh: InstanceId
) -> Instance:
    """Return the instance of a placement: its shards, conditions and keep-alive time."""
    card = placed.card
    keep_alive_s = next(
        (s for s in (command.keep_alive_s, card.keep_alive_s) if s is not None),
        policy.keep_alive_by_kind.get(card.makes, policy.keep_alive_s),
    )
    shards = tuple(
        Shard(
            rank=rank.rank,
            node=rank.copy.node.id,
            first_layer=rank.first_layer,
            last_layer=rank.last_layer,
            bytes_reserved=rank.reserved_bytes,
            backend=rank.copy.backend,
            devices=rank.devices,
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
        keep_alive_s=keep_alive_s,
        pinned=command.pinned,
        conditions=conditions_of(command),
        kv=placed.lead.copy.kv,
    )


def conditions_of(command: PlaceModel) -> Conditions:
    """Return the conditions of a command, for a later placement of the same instance."""
    return Conditions.model_validate(command, from_attributes=True)


def placement_again(instance: Instance, conditions: Conditions, why: str) -> PlaceModel:
    """Return the command that places the instance again under `conditions`. `why` becomes part of
    the command's id, which is only a label."""
    return PlaceModel(
        command_id=CommandId(f"{why}-{instance.instance}"),
        model=instance.model,
        keep_alive_s=None if instance.pinned else instance.keep_alive_s,
        pinned=instance.pinned,
        **dict(conditions),
    )


def decide_pin(
    command: PinModel, state: ClusterState, on_disk: frozenset[ModelId], *, by_card: bool
) -> ModelPinned | ModelUnpinned | Refusal | None:
    """Return the event that a command about a pin leads to; None if nothing changes; or a refusal.
    `on_disk`: the models on the disks of all nodes. `by_card`: the model's `card.toml` pins it."""
    model = command.model
    held = [
        instance
        for instance in state.instances.values()
        if instance.model == model and instance.serves
    ]
    if not command.pinned:
        if by_card:
            text = f"{model} is pinned by {BY_CARD}; remove `pin` from that file"
            return Refusal(reason="conflict", message=text, field="model")
        is_pinned = model in state.pins or any(victim.pinned for victim in held)
        return ModelUnpinned(model=model) if is_pinned else None
    if model in state.pins:
        return None
    if model not in on_disk and not held:
        text = f"{model} is on no node's disk; run `shoal pull {model}`"
        return Refusal(reason="unknown_model", message=text, field="model")
    if len(state.pins) >= MAX_PINS:
        text = f"{len(state.pins)} models are pinned, which is the limit; unpin one first"
        return Refusal(reason="conflict", message=text, field="model")
    return ModelPinned(pin=Pin(model=model, by=command.by, at_s=command.at_s))


def is_kept(instance: Instance, state: ClusterState) -> Refusal | None:
    """Return the refusal to unload an instance of a pinned model; None if it may be unloaded. A
    second instance may be unloaded while another one is ready."""
    pin = state.pins.get(instance.model)
    others = (
        other
        for other in state.instances.values()
        if other.model == instance.model and other.instance != instance.instance
    )
    if (
        pin is None
        or instance.status in ("draining", "failed")
        or any(other.status == "ready" for other in others)
    ):
        return None
    by = f" by {pin.by}" if pin.by else ""
    way = f"`shoal unpin {instance.model}`" if pin.by != BY_CARD else "remove `pin` from that file"
    return Refusal(
        reason="conflict",
        message=f"{instance.model} is pinned{by}; {way} first",
        field="instance",
        facts={"pinned": [instance.model]},
    )


def _load_s(scene: Scene, model: ModelId, size_bytes: int) -> float:
    """Return how many seconds the model last took to load, else an estimate from its size."""
    return scene.tenure.load_s.get(model, LEAST_LOAD_S + size_bytes / LOADED_PER_S)


def _demanded(demand: ModelDemand, now: float) -> pool.Claim:
    """Return the claim (demand for memory) of the requests for a model that wait at gateways."""
    classes = [
        (demand_class.priority, now - demand_class.oldest_s) for demand_class in demand.classes
    ]
    classes = classes or [(demand.best_priority, now - demand.oldest_s)]
    return pool.Claim(demand.model, tuple(classes))
