"""How fast a placement will decode: bytes read over memory bandwidth, plus what the hops cost.

Pure. One token of one stream reads every active weight once, so a stage takes its bytes over
its node's bandwidth; a pipeline adds one hop per boundary and the token's way back, a tensor
group two all-reduces per layer. Links count as measured, else by their prior. The figures
leave out what grows with the context and what a batch shares: they compare, they do not promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bus.wire.ids import NodeId
from bus.wire.topology import LinkCost, shared_prior
from master.placement.capacity import Seat
from master.placement.memory_cost import Layered

EFFICIENCY = 0.7
"""Of a memory's bandwidth on paper, what decoding reaches."""
TOKEN_BYTES = 4
CHIPS: Mapping[str, float] = {
    "M1 Ultra": 800e9, "M1 Max": 400e9, "M1 Pro": 200e9, "M1": 68e9,
    "M2 Ultra": 800e9, "M2 Max": 400e9, "M2 Pro": 200e9, "M2": 100e9,
    "M3 Ultra": 819e9, "M3 Max": 300e9, "M3 Pro": 150e9, "M3": 100e9,
    "M4 Max": 410e9, "M4 Pro": 273e9, "M4": 120e9, "M5": 153e9,
}  # fmt: skip
"""Bytes per second on paper, by the makers' data sheets; the smaller where there are two."""
COMPUTE: Mapping[str, float] = {"cpu": 12e9, "metal": 100e9, "cuda": 300e9, "rocm": 200e9}
"""For chips that are not in the table, by the last word of the backend's tag. A CPU counts with
what MLX's one core was measured to reach (8.3 GB/s, a 134 MB model at 62 tokens/s)."""


@dataclass(slots=True)
class Links:
    """What a hop between two nodes costs. `measured[a][b]` is what a measured towards b."""

    measured: Mapping[NodeId, Mapping[NodeId, LinkCost]] = field(
        default_factory=dict[NodeId, Mapping[NodeId, LinkCost]]
    )
    _priors: dict[tuple[object, ...], LinkCost] = field(
        default_factory=dict[tuple[object, ...], LinkCost]
    )

    def between(self, one: Seat, other: Seat) -> LinkCost:
        """As measured from either end, else the prior of the best medium that both have."""
        link = self.measured_between(one, other)
        if link is not None:
            return link
        same = bool(one.machine) and one.machine == other.machine
        key = (same, _media(one), _media(other))
        if key not in self._priors:
            self._priors[key] = shared_prior(one.ips, other.ips, same_machine=same)
        return self._priors[key]

    def measured_between(self, one: Seat, other: Seat) -> LinkCost | None:
        """As measured from the first, else from the second; None where neither did."""
        there = self.measured.get(one.node, {}).get(other.node)
        return there or self.measured.get(other.node, {}).get(one.node)


def read_s_per_byte(seat: Seat, backend: str) -> float:
    """Seconds a node takes to read one byte of weights: as measured, else by its chip."""
    if seat.memory_bytes_per_s:
        return 1.0 / seat.memory_bytes_per_s
    words = seat.chip.removeprefix("Apple ")
    on_paper = CHIPS.get(words) or COMPUTE.get(backend.rpartition("-")[2], COMPUTE["cpu"])
    return 1.0 / (on_paper * EFFICIENCY)


def hop_s(link: LinkCost, bytes_: int) -> float:
    """One message over a link."""
    return link.latency_s + bytes_ / link.bytes_per_s


def pipeline_s(
    load: Layered, bounds: Sequence[int], read_s: Sequence[float], links: Sequence[LinkCost]
) -> float:
    """Seconds per token of one stream. Stage i has layers [bounds[i], bounds[i + 1]); links[i]
    leads from stage i to the next, the last one back to the first (the token's way)."""
    stages = sum(
        load.read_of(first, last) * each
        for first, last, each in zip(bounds[:-1], bounds[1:], read_s, strict=True)
    )
    hops = sum(hop_s(link, load.activation) for link in links[:-1])
    return stages + hops + hop_s(links[-1], TOKEN_BYTES)


def tensor_s(
    load: Layered, read_s: Sequence[float], links: Sequence[LinkCost], *, mesh: bool
) -> float:
    """Seconds per token of one stream over tensor-parallel ranks. `links` lead around the ring,
    or (`mesh`) from each rank to the next of a full mesh. The slowest rank and the slowest link
    set the pace; a ring's all-reduce passes each of N pieces 2 (N - 1) times, a mesh's once."""
    ranks = len(read_s)
    reading = (load.active[-1] / ranks + load.head) * max(read_s)
    if mesh:
        reduce_s = max(hop_s(link, (ranks - 1) * load.activation) for link in links)
    else:
        piece = -(-load.activation // ranks)
        reduce_s = 2 * (ranks - 1) * max(hop_s(link, piece) for link in links)
    return reading + 2 * load.layers * reduce_s


def _media(seat: Seat) -> frozenset[tuple[str, int]]:
    return frozenset((one.medium, one.thunderbolt) for one in seat.ips)
