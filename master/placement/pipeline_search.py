"""Searches the nodes of a pipeline of a given size, and their order, for the fastest.

Pure. The best subset and its best cycle are hard to find (it contains the travelling salesman
problem), so the search is greedy and polynomial. From each of a bounded number of seeds a cycle
grows. Each step inserts the node that adds the least time, at its best place, if the rest of the
model can still fit. The most promising cycles are improved by exchanging nodes and reversing runs
(2-opt), then split exactly (`master.placement.split`) and timed. For few nodes all orders are
tried. Property tests compare the search with enumeration.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise, permutations

from bus.wire.topology import LinkCost, rdma_mesh
from master.placement.capacity import NodeCapacity
from master.placement.memory_cost import FIXED_BYTES, LayerCosts
from master.placement.speed import TOKEN_BYTES, Links, hop_s, pipeline_s
from master.placement.split import next_ends, split

MAX_RANKS = 32
"""Maximum ranks of a group; in larger groups the hops cost more than smaller shares save."""
SEEDS = 64
FEWEST_SEEDS = 8
"""Number of seeds, which are the members from which a search starts: `SEEDS` for groups of up to
seven ranks, fewer for larger groups, but at least `FEWEST_SEEDS`."""
POOL = 96
"""Candidates for a cycle: members with most memory, the fastest and the nearest to its seed."""
CHAINS = 6
"""Number of chains that are split exactly and timed."""
SWAPS = 64
"""Maximum number of exchanges that are tried for one chain, over all its places."""
CLIMBS = 4
STEPS = 16
"""Rounds that improve the best pipeline (`CLIMBS`); neighbours timed per round (`STEPS`)."""
EXHAUSTIVE_RANKS, EXHAUSTIVE_NODES, MOST_TIMED = 4, 10, 1000
"""Up to `EXHAUSTIVE_RANKS` ranks, every order of the best set is timed. Up to `EXHAUSTIVE_NODES`
nodes, the orders of every set are timed, most promising first, at most `MOST_TIMED`. So up to seven
nodes the answer is the best. With more nodes it is good, but without a bound."""
EXACT_RANKS = 6
"""Up to this many ranks, an exact search follows if none of the chains fits."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that may join: `room` bytes of memory, `read_s` seconds to read a byte of weights."""

    node: NodeCapacity
    room: int
    read_s: float


@dataclass(frozen=True, slots=True)
class TimedOrder:
    """Members in the order of the layers, the bounds between their layers, and the seconds per
    token. A tensor group has no bounds; its members are in the order of the ranks. `mesh`: JACCL
    joins the ranks."""

    members: tuple[Member, ...]
    bounds: tuple[int, ...]
    token_s: float
    mesh: bool = False


@dataclass(slots=True)
class SearchSpace:
    """The possible members, the model's costs, and the time of a hop between any two members."""

    costs: LayerCosts
    members: Sequence[Member]
    links: Links
    hop: Callable[[int, int], float] = field(init=False)
    """Seconds for one token's activations from one member to another, by number."""
    holds: Sequence[float] = field(init=False)
    """About how many bytes each member would read per token if layers filled its memory."""

    def __post_init__(self) -> None:
        costs, between = self.costs, self.links.between
        nodes = [member.node for member in self.members]
        per_byte = costs.read_bytes / max(1, _layer_bytes(costs))

        @cache
        def hop(first: int, second: int) -> float:
            """Return the seconds of a hop between two members, by number."""
            return hop_s(between(nodes[first], nodes[second]), costs.activation)

        self.hop = hop
        self.holds = [(member.room - FIXED_BYTES) * per_byte for member in self.members]

    def link(self, first: int, second: int) -> LinkCost:
        """Return the link between two members, by number."""
        return self.links.between(self.members[first].node, self.members[second].node)

    def around(self, chain: Sequence[int]) -> list[LinkCost]:
        """Return the links along a chain, and from its end back to its start."""
        return [self.link(a, b) for a, b in zip(chain, [*chain[1:], chain[0]], strict=True)]

    def with_room(self, least: int) -> SearchSpace:
        """Return a search space with only the members that have at least `least` bytes of room."""
        roomy = [member for member in self.members if member.room >= least]
        return SearchSpace(self.costs, roomy, self.links)

    def pick_seeds(self, most: int) -> list[int]:
        """Return the seeds: all members, or about `most`: largest, fastest, best connected."""
        every = list(range(len(self.members)))
        if len(every) <= most:
            return every
        members = self.members
        by_room = sorted(every, key=lambda i: -members[i].room)
        by_speed = sorted(every, key=lambda i: members[i].read_s)
        media = [{ip.medium for ip in member.node.card.ips} for member in members]
        joined = [i for i in every if "thunderbolt" in media[i]]
        third = max(1, most // 3)
        return list(dict.fromkeys([*by_room[:third], *by_speed[:third], *joined[:third]]))

    def pool(self, seed: int) -> list[int]:
        """Return the candidates for a chain from `seed`: all, or those with most memory, the
        fastest and the nearest."""
        members = self.members
        every = [i for i in range(len(members)) if i != seed]
        if len(every) <= POOL:
            return every
        third = POOL // 3
        by_room = sorted(every, key=lambda i: -members[i].room)[:third]
        by_speed = sorted(every, key=lambda i: members[i].read_s)[:third]
        near = sorted(every, key=lambda i: self.hop(seed, i))[:third]
        return list(dict.fromkeys([*by_room, *by_speed, *near]))

    def neighbours(self, chain: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
        """Yield the chain with one member exchanged, then with one part reversed (2-opt)."""
        members, hop, size = self.members, self.hop, len(chain)
        read_bytes = self.costs.read_bytes
        outside = [i for i in self.pool(chain[0]) if i not in chain]
        for place in range(size):
            before = chain[place - 1]
            near = sorted(
                outside,
                key=lambda i: hop(before, i) + members[i].read_s * read_bytes / size,
            )[: max(2, SWAPS // size)]
            for other in near:
                yield (*chain[:place], other, *chain[place + 1 :])
        for start in range(size - 1):
            for end in range(start + 2, size + 1):
                yield (*chain[:start], *reversed(chain[start:end]), *chain[end:])

    def improve(
        self, chain: tuple[int, ...], cost: Callable[[tuple[int, ...]], float]
    ) -> tuple[int, ...]:
        """Exchange members and reverse parts of the chain while that reduces the cost, in at most
        two passes. Return the cheapest chain."""
        best, least = chain, cost(chain)
        for _ in range(2):
            before = least
            for other in self.neighbours(best):
                neighbour_s = cost(other)
                if neighbour_s < least:
                    best, least = other, neighbour_s
            if least >= before:
                break
        return best


def pipeline_order(space: SearchSpace, ranks: int) -> TimedOrder | None:
    """Return the fastest pipeline of `ranks` members that the search finds; None if none fits."""
    costs = space.costs
    space = space.with_room(FIXED_BYTES + _smallest_layer(costs))
    if not 1 < ranks <= min(costs.layers, len(space.members)):
        return None
    if not _could_hold(space, ranks):
        return None
    effort = max(1, ranks // 4)
    seeds = space.pick_seeds(max(FEWEST_SEEDS, SEEDS // effort))
    grown = (_insert_cheapest(space, seed, ranks) for seed in seeds)
    chains = {chain for chain in grown if chain is not None}
    promising = sorted(chains, key=lambda chain: _estimate(space, chain))
    best = promising[: max(2, CHAINS // effort)]
    improved = [space.improve(chain, partial(_estimate, space)) for chain in best]
    orders = _time_all(space, (turn for chain in [*improved, *best] for turn in _rotations(chain)))
    if not orders:
        orders = _time_all(space, _feasible_orders(space, ranks))
    if not orders:
        return None
    fastest = _hill_climb(space, min(orders, key=lambda order: order.token_s))
    few = ranks <= EXHAUSTIVE_RANKS and len(space.members) <= EXHAUSTIVE_NODES
    return _enumerate_orders(space, fastest) if few else fastest


def split_and_time(space: SearchSpace, chain: Sequence[int]) -> TimedOrder | None:
    """Return the best split over members in exactly this order, with its time; None if none
    fits."""
    members = tuple(space.members[i] for i in chain)
    bounds = split(
        space.costs, [member.room for member in members], [member.read_s for member in members]
    )
    return None if bounds is None else time_split(space, chain, bounds)


def time_split(space: SearchSpace, order: Sequence[int], bounds: Sequence[int]) -> TimedOrder:
    """Return the pipeline with these members and bounds, and its predicted time. Whether the layers
    fit into the members' memory is not checked."""
    members = tuple(space.members[i] for i in order)
    read_s = [member.read_s for member in members]
    token_s = pipeline_s(space.costs, bounds, read_s, space.around(order))
    return TimedOrder(members, tuple(bounds), token_s, is_mesh(members))


def is_mesh(members: Sequence[Member]) -> bool:
    """Return whether JACCL can join the members: each has an RDMA link to every other."""
    nodes = [member.node.id for member in members]
    return rdma_mesh(nodes, {member.node.id: member.node.card.rdma for member in members})


# --- seeds and chains ---


def _layer_bytes(costs: LayerCosts) -> int:
    opening, closing = costs.edge_bytes
    return costs.needs[-1] + opening + closing - 2 * FIXED_BYTES


def _smallest_layer(costs: LayerCosts) -> int:
    return min(after - before for before, after in pairwise(costs.needs))


def _could_hold(space: SearchSpace, ranks: int) -> bool:
    """Return whether the `ranks` nodes with most memory could hold the model, by bytes and by
    number of layers."""
    costs, rooms = space.costs, [member.room - FIXED_BYTES for member in space.members]
    roomiest = sorted(rooms, reverse=True)[:ranks]
    whole = sum(room // max(1, _smallest_layer(costs)) for room in roomiest)
    return sum(roomiest) >= _layer_bytes(costs) and whole >= costs.layers


def _insert_cheapest(space: SearchSpace, seed: int, ranks: int) -> tuple[int, ...] | None:
    """Return the cycle that grows from member `seed` by cheapest insertion (Rosenkrantz, Stearns
    and Lewis, 1977). Costs are the times of hops and reading. None if the model cannot fit."""
    members, hop = space.members, space.hop
    pool = sorted(space.pool(seed), key=lambda i: -members[i].room)
    reading = {i: space.costs.read_bytes / ranks * members[i].read_s for i in pool}
    detour = {i: (hop(seed, i) + hop(i, seed), seed) for i in pool}
    after, direct = {seed: seed}, {seed: 0.0}
    missing = _layer_bytes(space.costs) - (members[seed].room - FIXED_BYTES)
    while len(after) < ranks:
        fit = _feasible_additions(space, pool, ranks - len(after) - 1, missing)
        if not fit:
            return None
        chosen = min(fit, key=lambda i: detour[i][0] + reading[i])
        before = detour[chosen][1]
        after[before], after[chosen] = chosen, after[before]
        direct[before], direct[chosen] = hop(before, chosen), hop(chosen, after[chosen])
        pool.remove(chosen)
        missing -= members[chosen].room - FIXED_BYTES
        for i in pool:
            stays = detour[i][1] != before
            edges = (before, chosen) if stays else after
            added = [(hop(a, i) + hop(i, after[a]) - direct[a], a) for a in edges]
            detour[i] = min(detour[i], *added) if stays else min(added)
    chain = [seed]
    while after[chain[-1]] != seed:
        chain.append(after[chain[-1]])
    return tuple(chain)


def _feasible_additions(
    space: SearchSpace, pool: Sequence[int], more: int, missing: int
) -> Sequence[int]:
    """Return the members of a pool that can be added so that `more` further members can still hold
    the `missing` bytes. The pool must be sorted by memory, largest first."""
    rooms = [space.members[i].room - FIXED_BYTES for i in pool]
    with_it, without = sum(rooms[: more + 1]), sum(rooms[:more])
    if with_it < missing:
        return ()
    count = sum(place <= more or without + room >= missing for place, room in enumerate(rooms))
    return pool[:count]


# --- estimates and improvements ---


def _estimate(space: SearchSpace, chain: Sequence[int]) -> float:
    """Return the predicted seconds per token if layers could be cut at any byte; infinite if the
    chain cannot hold the model. In such a split all stages take equal time, except stages whose
    memory is full earlier."""
    members, holds, bytes_ = space.members, space.holds, space.costs.read_bytes
    if sum(holds[i] for i in chain) < bytes_:
        return float("inf")
    left, pace, total_s = float(bytes_), sum(1.0 / members[i].read_s for i in chain), 0.0
    open_ = len(chain)
    for full_s, i in sorted((holds[i] * members[i].read_s, i) for i in chain):
        if full_s * pace >= left:
            break
        left, pace = left - holds[i], pace - 1.0 / members[i].read_s
        total_s, open_ = total_s + full_s, open_ - 1
    stages = total_s + (open_ * left / pace if open_ and pace > 0 else 0.0)
    return stages + sum(map(space.hop, chain, (*chain[1:], chain[0])))


def _hill_climb(space: SearchSpace, order: TimedOrder) -> TimedOrder:
    """Return the pipeline after repeated moves to its fastest neighbour, by exact time."""
    number = {member.node.id: i for i, member in enumerate(space.members)}
    steps = max(2, STEPS // max(1, len(order.members) // 4))
    for _ in range(CLIMBS):
        chain = tuple(number[member.node.id] for member in order.members)
        near = sorted(space.neighbours(chain), key=lambda neighbour: _estimate(space, neighbour))[
            :steps
        ]
        if len(chain) <= EXHAUSTIVE_RANKS:
            near += permutations(chain)
        best = min(_time_all(space, near), key=lambda neighbour: neighbour.token_s, default=order)
        if best.token_s >= order.token_s:
            break
        order = best
    return order


def _rotations(chain: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the chains that a cycle becomes if it is opened at each place, in both directions. A
    long cycle is opened at two places only."""
    size = len(chain)
    places = range(size) if size <= 4 else (0, size // 2)
    turned = [(*chain[at:], *chain[:at]) for at in places]
    return [*turned, *((tuple(reversed(cycle))) for cycle in turned)]


# --- exact ---


def _time_all(space: SearchSpace, chains: Iterable[tuple[int, ...]]) -> list[TimedOrder]:
    orders = (split_and_time(space, chain) for chain in dict.fromkeys(chains))
    return [order for order in orders if order is not None]


def _enumerate_orders(space: SearchSpace, fastest: TimedOrder) -> TimedOrder:
    """Return the fastest of all orders with the same number of members, by branch and bound."""
    every = permutations(range(len(space.members)), len(fastest.members))
    orders = sorted((_lower_bound_s(space, order), order) for order in every)
    for least_s, chain in orders[:MOST_TIMED]:
        if least_s >= fastest.token_s:
            break
        other = split_and_time(space, chain)
        if other is not None and other.token_s < fastest.token_s:
            fastest = other
    return fastest


def _lower_bound_s(space: SearchSpace, order: Sequence[int]) -> float:
    """Return a lower bound of the seconds per token: hops, and reading by the fastest member."""
    back = hop_s(space.link(order[-1], order[0]), TOKEN_BYTES)
    hops = sum(space.hop(a, b) for a, b in pairwise(order))
    fastest = min(space.members[i].read_s for i in order)
    return hops + back + space.costs.read_bytes * fastest


def _feasible_orders(space: SearchSpace, ranks: int) -> list[tuple[int, ...]]:
    """Return orders of the members with most memory in which the layers fit, whether fast or slow;
    empty if there are none. Above `EXACT_RANKS` ranks only two orders are tried: members with most
    memory first, and last.

    This is dynamic programming over sets of members: for each set it stores every layer up to which
    the set can hold the first stages. Smaller members need no search. If they hold the model in
    some order, the largest members do so, too: sort both by memory, and replace each by its
    counterpart.
    """
    costs, members = space.costs, space.members
    every = sorted(range(len(members)), key=lambda i: -members[i].room)[:ranks]
    if ranks > EXACT_RANKS:
        return [tuple(every), tuple(reversed(every))]
    opening, closing = costs.edge_bytes
    orders: dict[int, dict[int, tuple[int, ...]]] = {0: {0: ()}}
    for stage in range(ranks):
        edge = opening if stage == 0 else closing if stage == ranks - 1 else FIXED_BYTES
        most = costs.layers - (ranks - 1 - stage)
        longer: dict[int, dict[int, tuple[int, ...]]] = {}
        for taken, order_to in orders.items():
            for place, node in enumerate(every):
                if taken >> place & 1:
                    continue
                slack = members[node].room - edge
                farthest = partial(_farthest, costs, slack, most)
                there = longer.setdefault(taken | 1 << place, {})
                for end, first in next_ends(order_to, farthest).items():
                    there.setdefault(end, (*order_to[first], node))
        orders = longer
    return [order_to[costs.layers] for order_to in orders.values() if costs.layers in order_to]


def _farthest(costs: LayerCosts, slack: int, most: int, first: int) -> int:
    return min(bisect_right(costs.needs, costs.needs[first] + slack) - 1, most)
