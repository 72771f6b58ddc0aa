"""Commands about derived models to events, or to a refusal.

Pure. A name that a model on some disk has, or an instance holds, is not given away. A derived model
is made of one that is here, never of another derived one, so that no name leads in a circle.
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
    """Return the event of a command, or a refusal. `on_disk` are the models of all nodes."""
    if isinstance(command, ForgetDerived):
        if command.name in state.derived:
            return DerivedForgotten(name=command.name)
        text = f"there is no derived model {command.name!r}"
        return Refusal(reason="unknown_model", message=text, field="model")
    derived = command.derived
    models = on_disk | {one.model for one in state.instances.values() if one.serves}
    if not is_model_id(derived.name) or derived.name.endswith(":latest"):
        text = f"{derived.name!r} cannot be the name of a derived model"
        return Refusal(reason="bad_request", message=text, field="model")
    if derived.name in models:
        text = f"{derived.name} is a model's own name; choose another"
        return Refusal(reason="conflict", message=text, field="model")
    if derived.base not in models:
        text = f"there is no model {derived.base!r} to derive one from"
        return Refusal(reason="unknown_model", message=text, field="from")
    return _too_much(derived, state) or ModelDerived(derived=derived)


def _too_much(derived: DerivedModel, state: ClusterState) -> Refusal | None:
    others = [one for name, one in state.derived.items() if name != derived.name]
    size, all_bytes = derived.size_bytes, sum(one.size_bytes for one in others)
    if size > MAX_DERIVED_BYTES:
        text = f"it would hold {size} bytes with its prompts; at most {MAX_DERIVED_BYTES}"
        return Refusal(reason="bad_request", message=text, field="system")
    if len(others) >= MAX_DERIVED or all_bytes + size > MAX_ALL_DERIVED_BYTES:
        text = (
            f"{len(others)} derived models are kept; at most {MAX_DERIVED}, of "
            f"{MAX_ALL_DERIVED_BYTES} bytes together; delete one first"
        )
        return Refusal(reason="conflict", message=text)
    return None
