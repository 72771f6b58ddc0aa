"""How long placing a model takes: 64 nodes and 1,000, every pair of them linked and measured.

The clusters are uneven on purpose (sizes, speeds, islands of cables in a slower network), the
models need from one node to many. Prints the slowest of each, in milliseconds of processor time
(the function is pure and in one thread; a busy machine's waiting is not counted).
"""

from __future__ import annotations

import json
import random
import time

from bus.wire.cards import ModelCard
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.topology import LinkCost
from master.placement.availability import PlacementSpec
from master.placement.capacity import NodeCapacity
from master.placement.memory_cost import RunnerSizing
from master.placement.place import alternatives, place, placement_problem
from master.placement.search import Placement
from master.placement.speed import Links
from tests.harness.placement_nodes import GB, MB, MODEL, model, node

TARGETS_MS = {64: 100.0, 1000: 2000.0}
VAST = ModelId("vast")
ISLAND = 4
ROUNDS = 5


def cluster(count: int, card: ModelCard, seed: int) -> tuple[list[NodeCapacity], Links]:
    """Nodes of 8 to 64 GB in islands joined by cables, on one slower network; a tenth of them
    have the weights."""
    chance = random.Random(seed)
    vast = card.model_copy(
        update={
            "model": VAST,
            "layer_bytes": tuple(50 * size for size in card.layer_bytes),
            "weights_bytes": 50 * card.weights_bytes,
        }
    )
    nodes = [
        node(
            i,
            usable=chance.choice((8, 16, 24, 48, 64)) * GB,
            memory_bytes_per_s=chance.choice((50e9, 100e9, 200e9, 400e9)),
            models=(card, vast) if i % 10 == 0 else (),
            medium="thunderbolt" if chance.random() < 0.5 else "ethernet",
        )
        for i in range(count)
    ]
    measured: dict[NodeId, dict[NodeId, LinkCost]] = {}
    for i, one in enumerate(nodes):
        measured[one.id] = {
            other.id: LinkCost(25e-6, 4e9)
            if i // ISLAND == j // ISLAND
            else LinkCost(chance.uniform(1e-4, 5e-3), chance.uniform(2e7, 3e8))
            for j, other in enumerate(nodes)
            if i != j
        }
    return nodes, Links(measured)


def slowest_ms(count: int) -> dict[str, float]:
    """The longest of several rounds, by what was asked for."""
    card = model((1_200 * MB,) * 60, embedding=600 * MB, head=600 * MB, kv=4096)
    specs = {
        "as many as needed": PlacementSpec(MODEL),
        "at least 8": PlacementSpec(MODEL, min_nodes=8),
        "at least 24": PlacementSpec(MODEL, min_nodes=24),
        "4 by tensors": PlacementSpec(MODEL, min_nodes=4, sharding="tensor"),
        "refused": PlacementSpec(VAST),
    }
    found: dict[str, float] = {}
    for seed in range(ROUNDS):
        nodes, links = cluster(count, card, seed)
        for name, spec in specs.items():
            began = time.process_time()
            verdict = place(spec, nodes, RunnerSizing(), links)
            spent = (time.process_time() - began) * 1000
            assert isinstance(verdict, Refusal if spec.model == VAST else Placement), verdict
            found[name] = max(found.get(name, 0.0), round(spent, 1))
    return found


def previews_ms(count: int) -> float:
    """What `GET /instance/previews` computes: every size up to 8, and up to 3 beyond 64 nodes."""
    card = model((1_200 * MB,) * 60, embedding=600 * MB, head=600 * MB, kv=4096)
    nodes, links = cluster(count, card, 0)
    began = time.process_time()
    problem = placement_problem(PlacementSpec(MODEL), nodes, RunnerSizing(), links)
    assert not isinstance(problem, Refusal)
    assert sum(1 for _ in alternatives(problem, 3)) >= 5
    return round((time.process_time() - began) * 1000, 1)


def main() -> None:
    for count, target_ms in TARGETS_MS.items():
        found = slowest_ms(count)
        line = {"nodes": count, "slowest_ms": found, "target_ms": target_ms}
        met = max(found.values()) < target_ms
        print(json.dumps({**line, "met": met, "previews_ms": previews_ms(count)}))


if __name__ == "__main__":
    main()
