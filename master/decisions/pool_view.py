"""The pool as a decision sees it: copies, claims, the choice for a model; and commands about pins.

Pure. A pin is of a model, loaded or not: it survives its copy, its node and the holder. As long as
it stands, no command unloads the model, and it is placed again where it has no copy.
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
"""What loading a model is taken to cost before it was measured."""
LIVING = ("placed", "ready")
BY_CARD = "its card.toml"
"""Who has pinned a model that its own card pins."""


def copies_of(scene: Scene) -> list[pool.Copy]:
    """Return the copies in memory or on their way there."""
    demand = scene.observed.demand(scene.now)
    instances = scene.state.instances.values()
    quiet = scene.observed.quiet_nodes(scene.state.nodes, scene.now)
    replicas = pool.replicas_in(instances, quiet)
    return [
        pool.Copy(
            instance=one,
            use=scene.observed.use_of(one, scene.now),
            ready_at=scene.tenure.ready_at.get(one.instance),
            load_s=_load_s(scene, one.model, sum(s.bytes_reserved for s in one.shards)),
            pinned_by=None if one.instance in replicas else pool.pinned_by(one, scene.state),
            waiting=_demanded(demand[one.model], scene.now) if one.model in demand else None,
            replica=replicas.get(one.instance, ""),
        )
        for one in instances
        if one.status != "failed"
    ]


def claim_of(scene: Scene, command: PlaceModel | TakeLease) -> pool.Claim:
    """Return the claim behind a placement: of those who wait for the model at gateways, else of
    who wished for it; or behind a lease."""
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
    """Return where a model goes, and who leaves for it; or why it cannot go anywhere. On nodes on
    which its runners failed lately it goes later, or where who asks insists."""
    found = _chosen(scene, spec, claim)
    if not spec.barred or not isinstance(found, Refusal) or found.retry_after_s is not None:
        return found
    anywhere = _chosen(scene, replace(spec, barred={}), claim)
    if isinstance(anywhere, Refusal):
        return anywhere
    if scene.insists:
        return anywhere
    again_s = min(row.until for row in scene.barred[spec.model].values()) - scene.now
    facts = {**found.facts, "given_up": True}
    update = {"reason": "not_ready", "field": None, "retry_after_s": again_s, "facts": facts}
    return found.model_copy(update=update)


def spec_of(
    scene: Scene, model: ModelId, conditions: Conditions | None = None
) -> placement.PlacementSpec:
    """Return what is asked of a placement, and which nodes the model's runners failed on lately."""
    barred = {
        node: f"gets it again in {row.until - scene.now:.0f} s, for its runner failed: {row.why}"
        for node, row in scene.barred.get(model, {}).items()
    }
    return placement.PlacementSpec(model, **dict(conditions or Conditions()), barred=barred)


def _chosen(
    scene: Scene, spec: placement.PlacementSpec, claim: pool.Claim
) -> pool.PoolChoice | Refusal:
    everyone, candidates = _victims(scene, claim)
    found = pool.choose(
        spec,
        scene.nodes(),
        scene.policy.sizing,
        placement.Links(scene.observed.living_links(scene.now)),
        candidates,
        unpromised=scene.unpromised_nodes(),
        everyone=everyone,
    )
    if isinstance(found, pool.PoolChoice):
        return replace(found, load_s=_load_s(scene, spec.model, sum(found.needs.values())))
    return _refusal(found, scene)


def choose_as_it_can_be(
    scene: Scene, spec: placement.PlacementSpec, claim: pool.Claim
) -> tuple[pool.PoolChoice | Refusal, str]:
    """Return where a model goes, or why it cannot go anywhere, and which conditions that does not
    meet, where they may be let go."""
    chosen = choose(scene, spec, claim)
    if not scene.relaxes or not _is_bound(spec) or _is_placed(chosen):
        return chosen, ""
    anyhow = choose(scene, replace(spec, min_nodes=1, sharding=None, layers={}), claim)
    return (anyhow, _unmet(spec, chosen)) if _is_placed(anyhow) else (chosen, "")


def on_lost_nodes(model: ModelId, refusal: Refusal, scene: Scene) -> Refusal:
    """Return the refusal of a model that is on no node's disk as one that names the nodes which
    have it and are not heard, where there are any."""
    names = [
        card.name
        for card in scene.observed.unheard_cards(scene.now)
        if any(one.model == model for one in card.models)
    ]
    if refusal.reason != "unknown_model" or not names:
        return refusal
    text = f"{model} lies on {', '.join(names)} alone, of which nothing is heard"
    return Refusal(
        reason="not_ready", message=text, retry_after_s=UNHEARD_RETRY_S, facts={"given_up": True}
    )


def _is_bound(spec: placement.PlacementSpec) -> bool:
    return spec.min_nodes > 1 or spec.sharding is not None or bool(spec.layers)


def _is_placed(chosen: pool.PoolChoice | Refusal) -> bool:
    return isinstance(chosen, pool.PoolChoice) and chosen.placement is not None


def _unmet(spec: placement.PlacementSpec, chosen: pool.PoolChoice | Refusal) -> str:
    """Return which conditions are not met, and why."""
    asked = [
        *([f"min_nodes {spec.min_nodes}"] if spec.min_nodes > 1 else []),
        *([f"sharding {spec.sharding}"] if spec.sharding is not None else []),
        *(
            [f"layers {', '.join(f'{n} on {k}' for k, n in spec.layers.items())}"]
            * bool(spec.layers)
        ),
    ]
    refusal = chosen if isinstance(chosen, Refusal) else chosen.refusal
    why = "others would have to make way" if refusal is None else refusal.message
    return f"{', '.join(asked)} cannot be met since a node was lost: {why}"


def room_for(scene: Scene, command: TakeLease) -> pool.PoolChoice | Refusal:
    """Return on which node a lease's memory is kept, and who leaves for it; or why on none."""
    everyone, candidates = _victims(scene, claim_of(scene, command))
    nodes, unpromised = scene.nodes(), scene.unpromised_nodes()
    if command.node is not None:
        nodes = [one for one in nodes if one.id == command.node]
        unpromised = [one for one in unpromised if one.id == command.node]
        if not nodes:
            text = f"{command.node} takes nothing new: it is drained, lost or not known"
            return Refusal(reason="unknown_node", message=text, field="node")
    found = pool.choose_room(
        command.size_bytes, nodes, candidates, unpromised=unpromised, everyone=everyone
    )
    return found if isinstance(found, pool.PoolChoice) else _refusal(found, scene)


def _victims(scene: Scene, claim: pool.Claim) -> tuple[list[pool.Victim], list[pool.Victim]]:
    """Return every copy as one that may make way for a claim, and those that make way for no
    other."""
    settings, now = scene.policy.pool, scene.now
    everyone = [
        pool.victim(copy, pool.yielding(copy, claim, settings, now), now)
        for copy in copies_of(scene)
    ]
    claimed = {copy.instance for promise in scene.promises for copy in promise.leaving}
    return everyone, [one for one in everyone if one.copy.instance.instance not in claimed]


def _with_held_back(refusal: Refusal, scene: Scene) -> Refusal:
    """Return a refusal with the nodes named that take no model because of wired memory."""
    held = [seat for seat in scene.state.nodes.values() if seat.draining and seat.wired_bytes]
    if not held:
        return refusal
    told = "; ".join(
        f"{seat.name} takes no model, for {placement.gb(seat.wired_bytes)} GB are wired there "
        f"without one: a reboot frees them, `shoal nodes undrain {seat.name}` loads in spite of it"
        for seat in held
    )
    return refusal.model_copy(update={"message": f"{refusal.message}; {told}"})


def _refusal(found: Refusal | pool.Hopeless, scene: Scene) -> Refusal:
    """Return why there is no place; for want of room with the leases named that take some."""
    refusal = _with_held_back(found.refusal if isinstance(found, pool.Hopeless) else found, scene)
    leases = scene.state.leases.values()
    if refusal.reason != "no_capacity" or not leases:
        return refusal
    names = {str(seat.node): seat.name for seat in scene.state.nodes.values()}
    told = [
        f"{placement.gb(one.size_bytes)} GB on {names.get(one.node, one.node)} to "
        f"{one.owner or 'someone'} ({one.lease})"
        for one in leases
    ]
    text = f"{refusal.message}; leased: {', '.join(told)}"
    return refusal.model_copy(update={"message": text})


def pinned_by_cards(scene: Scene, among: Iterable[ModelId] = ()) -> dict[ModelId, bool]:
    """Return whether the newest `card.toml` of a model pins it, for those `among` which lie on a
    living node's disk, and for all of which a card does."""
    cards = scene.observed.living_cards(scene.now).values()
    asked = set(among) | {one.model for card in cards for one in card.models if one.pin}
    newest: dict[ModelId, tuple[float, bool]] = {}
    for card in cards if asked else ():
        for one in card.models:
            said = one.card_at_s, one.pin
            if one.model in asked and said > newest.get(one.model, (-math.inf, False)):
                newest[one.model] = said
    return {model: pin for model, (_, pin) in newest.items()}


def pins_of_cards(scene: Scene) -> list[PinModel]:
    """Return what `card.toml`s ask for and is not so yet, as commands whose ids are only names: the
    pins of those that pin, and the end of pins that came of a card which says it no longer.

    A pin ends only while every node that ever joined is heard of, for one that is away may have
    the newest card.
    """
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
        **dict(conditions),
    )


def decide_pin(
    command: PinModel, state: ClusterState, on_disk: frozenset[ModelId], *, by_card: bool
) -> ModelPinned | ModelUnpinned | Refusal | None:
    """Return the event of a command, None where it is so already, or a refusal. `on_disk` are the
    models of all nodes; `by_card`: the model's own `card.toml` pins it."""
    model = command.model
    held = [one for one in state.instances.values() if one.model == model and one.serves]
    if not command.pinned:
        if by_card:
            text = f"{model} is pinned by {BY_CARD}; take `pin` out of that"
            return Refusal(reason="conflict", message=text, field="model")
        is_pinned = model in state.pins or any(one.pinned for one in held)
        return ModelUnpinned(model=model) if is_pinned else None
    if model in state.pins:
        return None
    if model not in on_disk and not held:
        text = f"{model} is on no node's disk; to get it: `shoal pull {model}`"
        return Refusal(reason="unknown_model", message=text, field="model")
    if len(state.pins) >= MAX_PINS:
        text = f"{len(state.pins)} models are pinned, which is the most; unpin one first"
        return Refusal(reason="conflict", message=text, field="model")
    return ModelPinned(pin=Pin(model=model, by=command.by, at_s=command.at_s))


def is_kept(instance: Instance, state: ClusterState) -> Refusal | None:
    """Return why a copy is not unloaded: its model is pinned; None where it may be. A second copy
    of a pinned model may leave, as long as one is ready."""
    pin = state.pins.get(instance.model)
    others = (
        one
        for one in state.instances.values()
        if one.model == instance.model and one.instance != instance.instance
    )
    if (
        pin is None
        or instance.status in ("draining", "failed")
        or any(o.status == "ready" for o in others)
    ):
        return None
    by = f" by {pin.by}" if pin.by else ""
    way = f"`shoal unpin {instance.model}`" if pin.by != BY_CARD else "take `pin` out of that"
    return Refusal(
        reason="conflict",
        message=f"{instance.model} is pinned{by}; {way} first",
        field="instance",
        facts={"pinned": [instance.model]},
    )


def _load_s(scene: Scene, model: ModelId, size_bytes: int) -> float:
    """Return how long loading a model took last, else about what its size takes."""
    return scene.tenure.load_s.get(model, LEAST_LOAD_S + size_bytes / LOADED_PER_S)


def _demanded(demand: ModelDemand, now: float) -> pool.Claim:
    """Return the claim of those who wait at gateways."""
    classes = [(one.priority, now - one.oldest_s) for one in demand.classes]
    classes = classes or [(demand.best_priority, now - demand.oldest_s)]
    return pool.Claim(demand.model, tuple(classes))
