"""Which speed counts in a placement: measured tokens, measured bandwidth, or an assumed one."""

from __future__ import annotations

import pytest

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import ModelId, NodeId
from master.placement.availability import PlacementSpec
from master.placement.capacity import NodeCapacity
from master.placement.memory_cost import RunnerSizing
from master.placement.place import place
from master.placement.search import Placement
from master.placement.speed import EFFICIENCY, Links, read_s_per_byte
from tests.harness.placement_nodes import reading

MODEL = ModelCard(
    model=ModelId("m"), path="/m", family="qwen3", layers=4, weights_bytes=10**9,
    size_bytes=10**9, kv_bytes_per_token=10_000, context_tokens=32_768, vocabulary=100,
)  # fmt: skip


@pytest.mark.parametrize(
    ("measured", "backend", "bytes_per_s"),
    [
        (9e9, "mlx-cpu", 9e9),
        (9e9, "llamacpp-cpu", 9e9),
        (9e9, "command-mine", 9e9),
        (9e9, "llamacpp-cuda", 300e9 * EFFICIENCY),
        (9e9, "llamacpp-rocm", 200e9 * EFFICIENCY),
        (0.0, "mlx-cpu", 12e9 * EFFICIENCY),
    ],
)
def test_a_measured_bandwidth_is_the_processors(
    measured: float, backend: str, bytes_per_s: float
) -> None:
    card = NodeCard.model_construct(chip="AMD EPYC", memory_bytes_per_s=measured)
    node = NodeCapacity(card, None)
    assert 1.0 / read_s_per_byte(node, backend) == pytest.approx(bytes_per_s)


def node_with(name: str, tokens_per_s: float, bytes_per_s: float = 9e9) -> NodeCapacity:
    card = NodeCard(
        node=NodeId(name), name=name, memory_bytes=16 * 10**9, slots=4, backends=("mlx-cpu",),
        models=(MODEL.model_copy(update={"tokens_per_s": tokens_per_s}),), platform="", cores=1,
        mlx_version="", shoal_version="", announced_at_s=0.0, memory_bytes_per_s=bytes_per_s,
    )  # fmt: skip
    return NodeCapacity(card, reading(card, 12 * 10**9))


def placed_on(*nodes: NodeCapacity) -> tuple[str, float]:
    verdict = place(PlacementSpec(MODEL.model), list(nodes), RunnerSizing(), Links())
    assert isinstance(verdict, Placement)
    return verdict.lead.copy.node.id, verdict.tokens_per_s


def test_a_measured_speed_goes_before_the_prediction_if_every_node_was_measured() -> None:
    slow, fast = node_with("slow", 5.0, bytes_per_s=90e9), node_with("fast", 40.0)
    assert placed_on(slow, fast) == ("fast", pytest.approx(40.0))
    unmeasured = node_with("slow", 0.0, bytes_per_s=90e9)
    node, speed = placed_on(unmeasured, fast)
    assert node == "slow" and speed > 40.0, "a measured speed is not compared with a prediction"
