"""The pool as a decision sees it: copies, claims, the choice for a model; and commands about pins.

Pure. A pin is of a model, loaded or not: it survives its copy, its node and the holder. As long as
it stands, no command unloads the model, and it is placed again where it has no copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId
from bus.wire.instances import Instance
from bus.wire.messages.commands import PinModel, PlaceModel
from bus.wire.messages.events import ModelPinned, ModelUnpinned
from bus.wire.messages.readings import ModelDemand
from bus.wire.pool import MAX_PINS, Pin
from master import placement, pool

if TYPE_CHECKING:
    from master.decisions.decide import Scene

LEAST_LOAD_S, LOADED_PER_S = 1.5, 1e9
"""What loading a model is taken to cost before it was measured."""


def copies_of(scene: Scene) -> list[pool.Copy]:
    """Return the copies in memory or on their way there."""
    demand = scene.observed.demand(scene.now)
    return [
        pool.Copy(
            instance=one,
            use=scene.observed.use_of(one, scene.now),
            ready_at=scene.tenure.ready_at.get(one.instance),
            load_s=_load_s(scene, one.model, sum(s.bytes_reserved for s in one.shards)),
            pinned_by=pool.pinned_by(one, scene.state),
            waiting=_demanded(demand[one.model], scene.now) if one.model in demand else None,
        )
        for one in scene.state.instances.values()
        if one.status != "failed"
    ]


def claim_of(scene: Scene, command: PlaceModel) -> pool.Claim:
    """Return the claim behind a placement: of those who wait for the model at gateways, else of
    who wished for it."""
    model = command.model
    demand = scene.observed.demand(scene.now).get(model)
    if demand is not None:
        return _demanded(demand, scene.now)
    kind = "pin" if model in scene.state.pins else "asked"
    since_at = scene.tenure.wished_at.get(model, scene.now)
    return pool.Claim(model, ((command.priority, since_at),), kind)


def choose(
    scene: Scene, spec: placement.PlacementSpec, claim: pool.Claim
) -> pool.PoolChoice | Refusal | pool.Hopeless:
    """Return where a model goes, and who leaves for it."""
    settings, now = scene.policy.pool, scene.now
    everyone = [
        pool.victim(copy, pool.yielding(copy, claim, settings, now), now)
        for copy in copies_of(scene)
    ]
    claimed = {copy.instance for promise in scene.promises for copy in promise.leaving}
    found = pool.choose(
        spec,
        scene.nodes(),
        scene.policy.sizing,
        placement.Links(scene.observed.living_links(now)),
        [one for one in everyone if one.copy.instance.instance not in claimed],
        unpromised=scene.unpromised_nodes(),
        everyone=everyone,
    )
    if not isinstance(found, pool.PoolChoice):
        return found
    return replace(found, load_s=_load_s(scene, spec.model, sum(found.needs.values())))


def decide_pin(
    command: PinModel, state: ClusterState, on_disk: frozenset[ModelId]
) -> ModelPinned | ModelUnpinned | Refusal | None:
    """Return the event of a command, None where it is so already, or a refusal. `on_disk` are the
    models of all nodes."""
    model = command.model
    held = [one for one in state.instances.values() if one.model == model and one.serves]
    if not command.pinned:
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
    return Refusal(
        reason="conflict",
        message=f"{instance.model} is pinned{by}; `shoal unpin {instance.model}` first",
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
