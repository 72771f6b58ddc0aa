"""Which nodes make a tensor-parallel group, in which order around the ring.

Pure. Every rank needs the same room; the slowest memory and the slowest link set the pace, so
the search is for a cycle whose worst is best: from each of a bounded number of seeds its
cheapest company, the cycles that promise most improved by exchanges and reversals. Few nodes
are enumerated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import permutations
from math import perm

from master.placement.pipeline_search import CHAINS, SEEDS, Field, Line, improve, is_mesh, spread
from master.placement.speed import tensor_s

ENUMERATED = 1000
"""Up to so many cycles all are looked at, and the answer is the best; beyond, a good one."""


def tensor_line(ground: Field, ranks: int, *, splits_kv: bool) -> Line | None:
    """The fastest tensor-parallel group of `ranks` members that is found, or None."""
    need = ground.load.slice(ranks, splits_kv=splits_kv).total
    roomy = Field(ground.load, [one for one in ground.members if one.room >= need], ground.links)
    if not 1 < ranks <= len(roomy.members):
        return None
    every = range(len(roomy.members))
    cost = partial(_token_s, roomy)
    if perm(len(every), ranks) <= ENUMERATED:
        chains = list(permutations(every, ranks))
    else:
        grown = {_company(roomy, seed, ranks) for seed in spread(roomy, every, SEEDS)}
        best = sorted(grown, key=cost)[:CHAINS]
        chains = [*best, *(improve(roomy, chain, cost) for chain in best)]
    chain = min(chains, key=cost)
    members = tuple(roomy.members[i] for i in chain)
    return Line(members, (), cost(chain), is_mesh(members))


def _token_s(ground: Field, chain: Sequence[int]) -> float:
    members = [ground.members[i] for i in chain]
    read_s = [one.read_s for one in members]
    return tensor_s(ground.load, read_s, ground.around(chain), mesh=is_mesh(members))


def _company(ground: Field, seed: int, ranks: int) -> tuple[int, ...]:
    """A seed with those that cost least beside it, each followed by the nearest of the rest."""
    share = ground.load.active[-1] / ranks + ground.load.head
    passes = 4 * ground.load.layers * (ranks - 1) / ranks

    def beside(other: int) -> float:
        reading = share * max(ground.members[other].read_s, ground.members[seed].read_s)
        return reading + passes * ground.hop(seed, other)

    left = sorted((i for i in range(len(ground.members)) if i != seed), key=beside)[: ranks - 1]
    chain = [seed]
    while left:
        nearest = min(left, key=lambda i: ground.hop(chain[-1], i))
        chain.append(nearest)
        left.remove(nearest)
    return tuple(chain)
