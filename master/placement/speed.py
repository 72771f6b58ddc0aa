"""Predicts the decoding speed of a placement from memory bandwidth and the time of its hops.

Pure. A token of one stream reads every active weight once, so a stage takes its bytes divided by
its node's bandwidth. A pipeline adds one hop per boundary between stages, and one for the token's
way back. A tensor group adds two all-reduces per layer. The measured cost of a link is used if
there is one, else an estimate. The predictions only serve to compare placements. So they ignore
that a longer context costs more and that a batch saves time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bus.wire.ids import NodeId
from bus.wire.topology import LinkCost, shared_prior
from master.placement.capacity import NodeCapacity
from master.placement.memory_cost import LayerCosts

EFFICIENCY = 0.7
"""The share of the nominal memory bandwidth that decoding reaches."""
TOKEN_BYTES = 4
CHIP_BYTES_PER_S: Mapping[str, float] = {
    "M1 Ultra": 800e9, "M1 Max": 400e9, "M1 Pro": 200e9, "M1": 68e9,
    "M2 Ultra": 800e9, "M2 Max": 400e9, "M2 Pro": 200e9, "M2": 100e9,
    "M3 Ultra": 819e9, "M3 Max": 300e9, "M3 Pro": 150e9, "M3": 100e9,
    "M4 Max": 410e9, "M4 Pro": 273e9, "M4": 120e9, "M5": 153e9,
}  # fmt: skip
"""Nominal bytes per second from the makers' data sheets; the smaller figure if there are two."""
BACKEND_BYTES_PER_S = {"cpu": 12e9, "metal": 100e9, "cuda": 300e9, "rocm": 200e9}
"""Assumed bytes per second of chips that the table above lacks, by the last part of the backend's
tag. The figure of a CPU is from a measurement of MLX on one core (8.3 GB/s, a 134 MB model at 62
tokens/s)."""
GPU_KINDS = ("cuda", "rocm")
"""Backends that read the memory of a GPU, which a node does not measure."""


@dataclass(slots=True)
class Links:
    """The costs of the links between nodes. `measured[a][b]` is that from a to b; other links are
    estimated by their medium."""

    measured: Mapping[NodeId, Mapping[NodeId, LinkCost]] = field(
        default_factory=dict[NodeId, Mapping[NodeId, LinkCost]]
    )
    _priors: dict[tuple[object, ...], LinkCost] = field(
        default_factory=dict[tuple[object, ...], LinkCost]
    )

    def between(self, first: NodeCapacity, second: NodeCapacity) -> LinkCost:
        """Return the cost of a link as measured from either end, else the estimate for the two
        nodes' best common medium."""
        link = self.measured_between(first, second)
        if link is not None:
            return link
        same = bool(first.card.machine) and first.card.machine == second.card.machine
        key = (same, _media(first), _media(second))
        if key not in self._priors:
            self._priors[key] = shared_prior(first.card.ips, second.card.ips, same_machine=same)
        return self._priors[key]

    def measured_between(self, first: NodeCapacity, second: NodeCapacity) -> LinkCost | None:
        """Return the cost of a link as the first node measured it, else as the second did; None if
        neither did."""
        there = self.measured.get(first.id, {}).get(second.id)
        return there or self.measured.get(second.id, {}).get(first.id)


def read_s_per_byte(node: NodeCapacity, backend: str) -> float:
    """Return the seconds in which a node reads a byte of weights. The measured bandwidth of its
    processor counts, unless a GPU with memory of its own computes; else the chip's."""
    chip, kind = node.card.chip.removeprefix("Apple "), backend.rpartition("-")[2]
    if node.card.memory_bytes_per_s and kind not in GPU_KINDS:
        return 1.0 / node.card.memory_bytes_per_s
    bytes_per_s = BACKEND_BYTES_PER_S.get(kind, BACKEND_BYTES_PER_S["cpu"])
    on_paper = CHIP_BYTES_PER_S.get(chip, bytes_per_s)
    return 1.0 / (on_paper * EFFICIENCY)


def hop_s(link: LinkCost, bytes_: int) -> float:
    """Return the seconds of one message of `bytes_` over a link."""
    return link.latency_s + bytes_ / link.bytes_per_s


def pipeline_s(
    costs: LayerCosts, bounds: Sequence[int], read_s: Sequence[float], links: Sequence[LinkCost]
) -> float:
    """Return the predicted seconds per token of one stream through a pipeline.

    Stage i has layers [bounds[i], bounds[i + 1]); links[i] leads from stage i to the next, the last
    one back to the first (the token's way).
    """
    stages = sum(
        costs.read_bytes_of(first, last) * each
        for first, last, each in zip(bounds[:-1], bounds[1:], read_s, strict=True)
    )
    hops = sum(hop_s(link, costs.activation) for link in links[:-1])
    return stages + hops + hop_s(links[-1], TOKEN_BYTES)


def tensor_s(
    costs: LayerCosts, read_s: Sequence[float], links: Sequence[LinkCost], *, mesh: bool
) -> float:
    """Return the predicted seconds per token of one stream over tensor-parallel ranks.

    `links` lead around the ring, or (`mesh`) from each rank to the next of a full mesh. The slowest
    rank and the slowest link determine the time; a ring's all-reduce passes each of N pieces 2 (N -
    1) times, a mesh's once.
    """
    ranks = len(read_s)
    reading = (costs.active[-1] / ranks + costs.head) * max(read_s)
    if mesh:
        reduce_s = max(hop_s(link, (ranks - 1) * costs.activation) for link in links)
    else:
        piece = -(-costs.activation // ranks)
        reduce_s = 2 * (ranks - 1) * max(hop_s(link, piece) for link in links)
    return reading + 2 * costs.layers * reduce_s


def _media(node: NodeCapacity) -> frozenset[tuple[str, int]]:
    return frozenset((address.medium, address.thunderbolt) for address in node.card.ips)
