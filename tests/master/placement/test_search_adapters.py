"""A model with adapters is no tensor group, and may be a pipeline."""

from __future__ import annotations

from bus.wire.cards import AdapterCard
from master.placement.search import why_unshardable
from tests.harness.placement_nodes import model


def test_a_model_with_adapters_is_no_tensor_group_and_says_so() -> None:
    plain = model()
    assert why_unshardable(plain, "tensor", 2) is None
    adapted = model(adapters=(AdapterCard(name="a", rank=4, size_bytes=9),))
    assert "adapters" in (why_unshardable(adapted, "tensor", 2) or "")
    assert why_unshardable(adapted, "pipeline", 2) is None
