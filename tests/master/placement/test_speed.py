"""Which bandwidth of a node a prediction uses: the measured one, or one that is assumed."""

from __future__ import annotations

import pytest

from bus.wire.cards import NodeCard
from master.placement.capacity import NodeCapacity
from master.placement.speed import EFFICIENCY, read_s_per_byte


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
