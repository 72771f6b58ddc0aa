"""Which models there are, and what their names mean."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.replica.state import ClusterState
from bus.wire.cards import NodeCard
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.readings import CardReading
from gateway.dialects.faults import HttpFaultRaised
from gateway.requests import catalog
from gateway.requests.catalog import ModelCatalog
from gateway.view.readings import ClusterReadings
from tests.harness.placement_nodes import model


def starting(
    *, has_state: bool = True, has_card: bool = True, on_disk: Sequence[str] = (),
    derived: Sequence[DerivedModel] = (),
) -> ModelCatalog:  # fmt: skip
    """Return the catalog of a process that may lack the cluster's state or all node cards."""
    readings = ClusterReadings()
    if has_card:
        card = NodeCard(
            node=NodeId("n1"), name="n", platform="linux", cores=2, memory_bytes=1,
            backends=("mlx-cpu",), mlx_version="0", shoal_version="0", slots=1,
            announced_at_s=1.0,
            models=tuple(model().model_copy(update={"model": one}) for one in on_disk),
        )  # fmt: skip
        readings.heard(CardReading(card=card), 0.0)
    bus = SimpleNamespace(
        mirror=SimpleNamespace(live=has_state),
        state=ClusterState(derived={one.name: one for one in derived}),
        reactor=SimpleNamespace(now=lambda: 1.0),
    )
    return ModelCatalog(cast(Any, bus), readings, cast(Any, None))


@pytest.mark.parametrize(
    ("has_state", "has_card", "known"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
def test_which_models_exist_is_known_with_the_state_and_a_card(
    has_state: bool, has_card: bool, known: bool
) -> None:
    assert starting(has_state=has_state, has_card=has_card).known is known


@pytest.mark.parametrize(
    ("has_state", "has_card", "answers"),
    [(True, False, True), (False, True, True), (False, False, False)],
)
def test_a_request_waits_for_a_while_and_is_refused_only_where_nothing_has_come(
    has_state: bool, has_card: bool, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "KNOWN_S", 0.01)
    made = starting(has_state=has_state, has_card=has_card)
    if answers:
        asyncio.run(made.wait_known())
        return
    with pytest.raises(HttpFaultRaised) as raised:
        asyncio.run(made.wait_known())
    assert (raised.value.fault.status, raised.value.fault.retry_after_s) == (503, 2.0)


def test_a_derived_models_name_means_its_base_unless_a_model_on_disk_has_that_name() -> None:
    mine = DerivedModel(name=ModelId("mine"), base=ModelId("base"), system="s", made_at_s=1.0)
    made = starting(on_disk=["base"], derived=[mine])
    assert made.derived("mine") == mine and made.named("mine") == "base"
    assert made.derived_here() == [mine]
    made = starting(on_disk=["base", "mine"], derived=[mine])
    assert made.derived("mine") is None and made.named("mine") == "mine"
    assert made.derived_here() == []
    assert starting(on_disk=["other"], derived=[mine]).derived_here() == [], "its base is gone"
