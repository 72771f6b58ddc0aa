"""Commands about derived models, and what the state makes of them."""

from __future__ import annotations

import pytest

from bus.replica.state import ClusterState, apply
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, ModelId
from bus.wire.messages.commands import DeriveModel, ForgetDerived
from bus.wire.messages.derived import (
    MAX_ALL_DERIVED_BYTES,
    MAX_DERIVED,
    MAX_DERIVED_BYTES,
    DerivedModel,
)
from bus.wire.messages.events import DerivedForgotten, Event, ModelDerived
from master.decisions.derived import decide_derived

M = ModelId("m")
HERE = frozenset({M})


def derive(
    name: str, state: ClusterState, system: str = "", base: str = "m"
) -> ModelDerived | DerivedForgotten | Refusal:
    derived = DerivedModel(name=ModelId(name), base=ModelId(base), system=system)
    return decide_derived(DeriveModel(command_id=CommandId("c"), derived=derived), state, HERE)


def after(state: ClusterState, body: ModelDerived | DerivedForgotten | Refusal) -> ClusterState:
    assert not isinstance(body, Refusal), body
    return apply(state, Event(term=1, index=state.index + 1, at_s=0.0, body=body))


def test_a_name_is_given_replaced_and_taken_back() -> None:
    state = after(ClusterState(), derive("n", ClusterState(), "s"))
    assert state.derived["n"].system == "s"
    state = after(state, derive("n", state, "t"))
    assert [one.system for one in state.derived.values()] == ["t"]
    forget = ForgetDerived(command_id=CommandId("d"), name=ModelId("n"))
    gone = decide_derived(forget, state, HERE)
    assert gone == DerivedForgotten(name=ModelId("n"))
    assert after(state, gone).derived == {}
    refused = decide_derived(forget, ClusterState(), HERE)
    assert isinstance(refused, Refusal) and refused.reason == "unknown_model"


@pytest.mark.parametrize(
    ("name", "base", "reason"),
    [
        ("m", "m", "conflict"),
        ("n", "o", "unknown_model"),
        ("../n", "m", "bad_request"),
        ("n:latest", "m", "bad_request"),
    ],
)
def test_what_cannot_be_is_refused(name: str, base: str, reason: str) -> None:
    refused = derive(name, ClusterState(), base=base)
    assert isinstance(refused, Refusal) and refused.reason == reason


def test_they_are_bounded_each_and_together() -> None:
    too_long = derive("n", ClusterState(), "s" * MAX_DERIVED_BYTES)
    assert isinstance(too_long, Refusal) and too_long.field == "system"
    state, large = ClusterState(), "s" * (MAX_DERIVED_BYTES - 1000)
    while isinstance(body := derive(f"n{len(state.derived)}", state, large), ModelDerived):
        state = after(state, body)
    assert isinstance(body, Refusal) and body.reason == "conflict"
    assert sum(one.size_bytes for one in state.derived.values()) <= MAX_ALL_DERIVED_BYTES
    many = {f"n{n}": DerivedModel(name=ModelId(f"n{n}"), base=M) for n in range(MAX_DERIVED)}
    full = ClusterState(derived=many)
    assert isinstance(derive("one-more", full), Refusal)
    assert isinstance(derive("n0", full, "s"), ModelDerived)


def test_a_state_of_before_there_were_any_is_read() -> None:
    then = ClusterState().model_dump(exclude={"derived"})
    assert ClusterState.model_validate(then) == ClusterState()
