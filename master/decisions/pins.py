"""Commands about pins to events, or to a refusal.

Pure. A pin is of a model, loaded or not: it survives its copy, its node and the holder. As long as
it stands, nobody unloads the model, and it is placed again where it has no copy.
"""

from __future__ import annotations

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId
from bus.wire.instances import Instance
from bus.wire.messages.commands import PinModel
from bus.wire.messages.events import ModelPinned, ModelUnpinned
from bus.wire.messages.pool import MAX_PINS, Pin


def decide_pin(
    command: PinModel, state: ClusterState, on_disk: frozenset[ModelId]
) -> ModelPinned | ModelUnpinned | Refusal | None:
    """Return the event of a command, None where it is so already, or a refusal. `on_disk` are the
    models of all nodes."""
    model = command.model
    held = [one for one in state.instances.values() if one.model == model and one.test is None]
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
