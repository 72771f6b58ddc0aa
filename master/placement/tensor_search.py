"""Finds the nodes of a tensor-parallel group and their order around the ring.

Pure. Every rank needs the same memory; the slowest memory and the slowest link determine the time.
So the search optimises the slowest part of a cycle. From each of several seeds a cycle grows by its
cheapest neighbours. The most promising cycles are improved by exchanges and reversals. For few
nodes all cycles are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import permutations
from math import perm

from master.placement.pipeline_search import CHAINS, SEEDS, SearchSpace, TimedOrder, is_mesh
from master.placement.speed import tensor_s

MOST_CYCLES = 1000
"""If there are at most this many cycles, all are timed and the result is the best; otherwise it is
a good one."""


def tensor_order(space: SearchSpace, ranks: int, *, splits_kv: bool) -> TimedOrder | None:
    """Return the fastest tensor-parallel group of `ranks` members that the search finds, or None.
    `splits_kv`: each rank holds a share of the KV cache; otherwise it holds all of it."""
    need = space.costs.tensor_rank_cost(ranks, splits_kv=splits_kv).total
    roomy = space.with_room(need)
    if not 1 < ranks <= len(roomy.members):
        return None
    every = range(len(roomy.members))
    cost = partial(_token_s, roomy)
    if perm(len(every), ranks) <= MOST_CYCLES:
        chains = list(permutations(every, ranks))
    else:
        grown = {_grow_cycle(roomy, seed, ranks) for seed in roomy.pick_seeds(SEEDS)}
        best = sorted(grown, key=cost)[:CHAINS]
        chains = [*best, *(roomy.improve(chain, cost) for chain in best)]
    chain = min(chains, key=cost)
    members = tuple(roomy.members[i] for i in chain)
    return TimedOrder(members, (), cost(chain), is_mesh(members))


def _token_s(space: SearchSpace, chain: Sequence[int]) -> float:
    members = [space.members[i] for i in chain]
    read_s = [member.read_s for member in members]
    return tensor_s(space.costs, read_s, space.around(chain), mesh=is_mesh(members))


def _grow_cycle(space: SearchSpace, seed: int, ranks: int) -> tuple[int, ...]:
    """Return a cycle of the node `seed` and the nodes that would be fastest in a ring with it
    (`beside`). Each is followed by the nearest node that is not yet in the cycle."""
    share = space.costs.active[-1] / ranks + space.costs.head
    passes = 4 * space.costs.layers * (ranks - 1) / ranks

    def beside(other: int) -> float:
        """Return the predicted seconds per token of a ring in which `seed` and `other` are the
        slowest nodes, and the hop between them is the slowest hop."""
        reading = share * max(space.members[other].read_s, space.members[seed].read_s)
        return reading + passes * space.hop(seed, other)

    left = sorted((i for i in range(len(space.members)) if i != seed), key=beside)[: ranks - 1]
    chain = [seed]
    while left:
        nearest = min(left, key=lambda i: space.hop(chain[-1], i))
        chain.append(nearest)
        left.remove(nearest)
    return tuple(chain)
