"""How many copies leave in small cases, against the fewest that brute force finds."""

from __future__ import annotations

import os
import random
from itertools import combinations, product

import pytest

from bus.wire.ids import CommandId, ModelId, NodeId
from bus.wire.messages.commands import PinModel
from master.decisions.decide import Policy
from tests.harness.variants import mostly_proof
from tests.sim.pool_world import GB, Ask, Kind, PoolWorld

CASES = 1_000 if os.environ.get("SHOAL_PROVE") else 60
LOAD_S = 0.5


def need_of(kind: Kind) -> int:
    """Return the least bytes of a model of the simulated world, by `docs/operations/placement.md`:
    weights x 1.3, 4,096 tokens of context at 1,000 bytes, 256 MB."""
    return int(kind.gigabytes * GB * 1.3) + 4_096_000 + 256_000_000


def fewest(world: PoolWorld, wanted: list[ModelId]) -> int | None:
    """Return how many copies have to leave at least for all of the models that are wanted to fit,
    over every way to put them on nodes and every set of copies that are not pinned; None where
    that is not possible. Of each node all that counts is its bytes and its slots."""
    best: int | None = None
    for places in product(world.nodes, repeat=len(wanted)):
        sets: list[int] = []
        for node in world.nodes:
            here = [m for m, place in zip(wanted, places, strict=True) if place == node]
            least = _fewest_on(world, node, sum(need_of(world.kinds[m]) for m in here), len(here))
            if least is None:
                break
            sets.append(least)
        else:
            best = sum(sets) if best is None else min(best, sum(sets))
    return best


def _fewest_on(world: PoolWorld, node: NodeId, need: int, count: int) -> int | None:
    gigabytes, slots = world.nodes[node]
    there = [one for one in world.state.instances.values() if one.shards[0].node == node]
    free = [one for one in there if one.model not in world.state.pins]
    if not count:
        return 0
    for size in range(len(free) + 1):
        for gone in combinations(free, size):
            held = sum(one.shards[0].bytes_reserved for one in there if one not in gone)
            if len(there) - size + count <= slots and held + need <= gigabytes * GB:
                return size
    return None


def settled(
    kinds: list[Kind], nodes: dict[str, tuple[float, int]], chance: random.Random
) -> PoolWorld:
    """Return a world in which each model was asked for once, and everything is idle."""
    world = PoolWorld(kinds, nodes, Policy(keep_alive_s=10_000.0))
    for kind in chance.sample(kinds, len(kinds)):
        ask = world.ask(kind.name, work_s=0.1)
        assert is_answered(world, [ask]), f"{kind.name} is not answered"
    world.run(4.0)
    return world


def is_answered(world: PoolWorld, asks: list[Ask]) -> bool:
    """Return whether all of these are answered within a minute."""
    return world.run(60.0, lambda: all(ask in world.done for ask in asks))


def missing(world: PoolWorld) -> list[ModelId]:
    """Return the models without a copy."""
    held = {one.model for one in world.state.instances.values()}
    return [name for name in world.kinds if name not in held]


def one_after_the_other(seed: int, nodes_at_most: int) -> int:
    """Ask for models without a copy, with a pin in between; return how many copies left for them,
    each time as few as have to."""
    chance = random.Random(seed)
    kinds = [Kind(ModelId(f"m{n}"), chance.choice((1, 2, 3, 4)), LOAD_S) for n in range(6)]
    nodes = {
        f"n{n}": (chance.choice((7.0, 9.0, 13.0)), chance.randint(1, 4))
        for n in range(chance.randint(1, nodes_at_most))
    }
    world = settled(kinds, nodes, chance)
    left = 0
    for number in range(2):
        held = [one.model for one in world.state.instances.values()]
        if number and held:
            name = CommandId(f"pin{seed}")
            world.command(PinModel(command_id=name, model=chance.choice(held), by="ann"))
        wanted = chance.choice(missing(world) or [kinds[0].name])
        least = 0 if wanted in held else fewest(world, [wanted])
        before, ask = world.evictions, world.ask(wanted, work_s=0.1)
        assert is_answered(world, [ask]) == (least is not None), f"seed {seed}: {wanted} {least}"
        gone = world.evictions - before
        assert gone == (least or 0), f"seed {seed}: {gone} leave for {wanted}, {least} have to"
        left += gone
        if least is None:
            break
        world.run(4.0)
    return left


@pytest.mark.slow
@pytest.mark.parametrize("nodes_at_most", mostly_proof([1, 3], [1]))
def test_for_one_model_no_more_copies_leave_than_have_to(nodes_at_most: int) -> None:
    left = sum(one_after_the_other(seed, nodes_at_most) for seed in range(CASES))
    print(f"{CASES} cases, in which {left} copies left: as few as had to")
    assert left > CASES / 2, "nothing had to leave"


@pytest.mark.slow
def test_for_many_models_of_one_size_at_once_no_more_copies_leave_than_have_to() -> None:
    left = 0
    for seed in range(CASES):
        chance = random.Random(seed)
        slots = [chance.randint(1, 3) for _ in range(chance.randint(1, 2))]
        kinds = [Kind(ModelId(f"m{n}"), 1, LOAD_S) for n in range(sum(slots) + 3)]
        nodes = {f"n{number}": (4.0 * count, count) for number, count in enumerate(slots)}
        world = settled(kinds, nodes, chance)
        wanted = missing(world)[: min(3, sum(slots))]
        least, before = fewest(world, wanted), world.evictions
        asks = [world.ask(model, work_s=0.1) for model in wanted]
        assert is_answered(world, asks), f"seed {seed}: {wanted}"
        assert world.evictions - before == least, f"seed {seed}: {wanted} need {least}"
        left += world.evictions - before
    print(f"{CASES} cases, in which {left} copies left: as few as had to")
    assert left >= CASES, "nothing had to leave"
