"""Commands about derived models: the events or refusals that they lead to.

Pure. A name of a model on disk or of an instance cannot be taken. The base of a derived model is
never another derived model, so that names cannot form a cycle.
"""

from __future__ import annotations

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, is_model_id
from bus.wire.messages.commands import DeriveModel, ForgetDerived
from bus.wire.messages.derived import (
    MAX_ALL_DERIVED_BYTES,
    MAX_DERIVED,
    MAX_DERIVED_BYTES,
    DerivedModel,
)
from bus.wire.messages.events import DerivedForgotten, ModelDerived


def decide_derived(
    command: DeriveModel | ForgetDerived, state: ClusterState, on_disk: frozenset[ModelId]
) -> ModelDerived | DerivedForgotten | Refusal:
    """Return the event that a command leads to, or a refusal. `on_disk`: the models on the disks of
    all nodes."""
    if isinstance(command, ForgetDerived):
        if command.name in state.derived:
            return DerivedForgotten(name=command.name)
        text = f"there is no derived model {command.name!r}"
        return Refusal(reason="unknown_model", message=text, field="model")
    derived = command.derived
    models = on_disk | {instance.model for instance in state.instances.values() if instance.serves}
    if not is_model_id(derived.name) or derived.name.endswith(":latest"):
        text = f"{derived.name!r} is not a valid name for a derived model"
        return Refusal(reason="bad_request", message=text, field="model")
    if derived.name in models:
        text = f"{derived.name} is the name of a model; choose another name"
        return Refusal(reason="conflict", message=text, field="model")
    if derived.base not in models:
        text = f"the base model {derived.base!r} does not exist"
        return Refusal(reason="unknown_model", message=text, field="from")
    return _too_much(derived, state) or ModelDerived(derived=derived)


def _too_much(derived: DerivedModel, state: ClusterState) -> Refusal | None:
    others = [other for name, other in state.derived.items() if name != derived.name]
    size, all_bytes = derived.size_bytes, sum(other.size_bytes for other in others)
    if size > MAX_DERIVED_BYTES:
        limit = f"{MAX_DERIVED_BYTES:,}"
        text = f"the derived model has {size:,} bytes with its prompts; the limit is {limit}"
        return Refusal(reason="bad_request", message=text, field="system")
    if len(others) >= MAX_DERIVED or all_bytes + size > MAX_ALL_DERIVED_BYTES:
        text = (
            f"there are {len(others)} derived models; the limits are {MAX_DERIVED} models and "
            f"{MAX_ALL_DERIVED_BYTES:,} bytes in all; delete one first"
        )
        return Refusal(reason="conflict", message=text)
    return None
