"""Which nodes make a group of a given size, in which order: the fastest that is found.

Pure. Choosing the best subset and its best cycle is hard (it contains the travelling salesman's
problem), so the search is greedy and polynomial: from each of a bounded number of seeds a cycle
grows by the node that adds the least time at its best place, never taking one with which the
model could no longer fit into what remains; the cycles that promise most are improved by exchanging
nodes and reversing runs (2-opt), then split exactly (`master.placement.split`) and timed. Few nodes
are enumerated. Property tests hold the search against enumeration.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise, permutations

from bus.wire.topology import LinkCost, rdma_mesh
from master.placement.capacity import Seat
from master.placement.memory_cost import FIXED_BYTES, Layered
from master.placement.speed import TOKEN_BYTES, Links, hop_s, pipeline_s
from master.placement.split import next_ends, split

MAX_RANKS = 32
"""Of one group; beyond, the way around costs more than any share saves."""
SEEDS = 64
FEWEST = 8
"""Chains that are grown for groups of up to seven; fewer for larger ones, never below `FEWEST`."""
POOL = 96
"""Members that a cycle may grow by: the roomiest, the fastest and those nearest to its seed."""
CHAINS = 6
"""How many chains are split exactly and timed."""
SWAPS = 64
"""Exchanges tried for one chain, over all its places."""
CLIMBS = 4
STEPS = 16
"""Rounds of improvement of the best pipeline, and neighbours that each of them times."""
FEW, HOME, MOST_TIMED = 4, 10, 1000
"""Up to `FEW` ranks, every order of the best set is timed; among up to `HOME` nodes, of every set,
most promising first, but no more than `MOST_TIMED`: up to seven nodes the answer is the best.
Beyond `HOME` nothing is promised of how near to the best it is."""
EXACT = 6
"""Up to this many ranks, an order is looked for exactly when none of the chains fits."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that may join: `room` bytes for this model, `read_s` seconds per byte read."""

    seat: Seat
    room: int
    read_s: float


@dataclass(frozen=True, slots=True)
class Line:
    """Members in the order of the layers, with the bounds between them."""

    members: tuple[Member, ...]
    bounds: tuple[int, ...]
    token_s: float
    mesh: bool = False


@dataclass(slots=True)
class Field:
    """All that may join, and what a token costs between any two, looked up once."""

    load: Layered
    members: Sequence[Member]
    links: Links
    hop: Callable[[int, int], float] = field(init=False)
    """Seconds for one token's activations from a member to another."""
    holds: Sequence[float] = field(init=False)
    """Bytes that each member would read per token if it held all that it has room for, about."""

    def __post_init__(self) -> None:
        load, between = self.load, self.links.between
        seats = [one.seat for one in self.members]
        per_byte = load.read_bytes / max(1, _all_needs(load))

        @cache
        def hop(one: int, other: int) -> float:
            return hop_s(between(seats[one], seats[other]), load.activation)

        self.hop = hop
        self.holds = [(one.room - FIXED_BYTES) * per_byte for one in self.members]

    def link(self, one: int, other: int) -> LinkCost:
        return self.links.between(self.members[one].seat, self.members[other].seat)

    def around(self, chain: Sequence[int]) -> list[LinkCost]:
        """The links along a chain and from its end back to its beginning."""
        return [self.link(a, b) for a, b in zip(chain, [*chain[1:], chain[0]], strict=True)]


def pipeline_line(ground: Field, ranks: int) -> Line | None:
    """The fastest pipeline of `ranks` members that is found, or None when none fits."""
    load = ground.load
    least = FIXED_BYTES + _smallest(load)
    ground = Field(load, [one for one in ground.members if one.room >= least], ground.links)
    if not 1 < ranks <= min(load.layers, len(ground.members)):
        return None
    if not _may_hold(ground, ranks):
        return None
    effort = max(1, ranks // 4)
    seeds = spread(ground, range(len(ground.members)), max(FEWEST, SEEDS // effort))
    chains = {one for seed in seeds if (one := _grown(ground, seed, ranks)) is not None}
    promising = sorted(chains, key=lambda chain: _estimate(ground, chain))
    best = promising[: max(2, CHAINS // effort)]
    improved = [improve(ground, chain, partial(_estimate, ground)) for chain in best]
    found = _all_timed(ground, (turn for one in [*improved, *best] for turn in _turned(one)))
    if not found:
        found = _all_timed(ground, _any_order(ground, ranks))
    if not found:
        return None
    line = _climbed(ground, min(found, key=lambda line: line.token_s))
    few = ranks <= FEW and len(ground.members) <= HOME
    return _enumerated(ground, line) if few else line


def timed(ground: Field, chain: Sequence[int]) -> Line | None:
    """The best split over members in this very order, and how fast it is; None: it does not fit."""
    members = tuple(ground.members[i] for i in chain)
    bounds = split(ground.load, [one.room for one in members], [one.read_s for one in members])
    return None if bounds is None else line_of(ground, chain, bounds)


def line_of(ground: Field, order: Sequence[int], bounds: Sequence[int]) -> Line:
    """The line that a split by hand makes."""
    members = tuple(ground.members[i] for i in order)
    read_s = [one.read_s for one in members]
    token_s = pipeline_s(ground.load, bounds, read_s, ground.around(order))
    return Line(members, tuple(bounds), token_s, is_mesh(members))


def improve(
    ground: Field, chain: tuple[int, ...], cost: Callable[[tuple[int, ...]], float]
) -> tuple[int, ...]:
    """Exchange members and reverse runs for as long as the cost falls, twice at most."""
    best, least = chain, cost(chain)
    for _ in range(2):
        before = least
        for other in _neighbours(ground, best):
            found = cost(other)
            if found < least:
                best, least = other, found
        if least >= before:
            break
    return best


def spread(ground: Field, among: Iterable[int], most: int) -> list[int]:
    """All of them, or `most` of the roomiest, the fastest and the best connected."""
    every = list(among)
    if len(every) <= most:
        return every
    members = ground.members
    by_room = sorted(every, key=lambda i: -members[i].room)
    by_speed = sorted(every, key=lambda i: members[i].read_s)
    joined = [i for i in every if any(ip.medium == "thunderbolt" for ip in members[i].seat.ips)]
    third = max(1, most // 3)
    return list(dict.fromkeys([*by_room[:third], *by_speed[:third], *joined[:third]]))


def is_mesh(members: Sequence[Member]) -> bool:
    """Whether JACCL can join them: RDMA from everyone to everyone."""
    nodes = [one.seat.node for one in members]
    return rdma_mesh(nodes, {one.seat.node: one.seat.rdma for one in members})


# --- seeds and chains ---


def _all_needs(load: Layered) -> int:
    opening, closing = load.edge_needs
    return load.needs[-1] + opening + closing - 2 * FIXED_BYTES


def _smallest(load: Layered) -> int:
    return min(after - before for before, after in pairwise(load.needs))


def _rooms(ground: Field) -> list[int]:
    return [one.room - FIXED_BYTES for one in ground.members]


def _may_hold(ground: Field, ranks: int) -> bool:
    """Whether the roomiest members could hold it, in bytes and in whole layers."""
    load, roomiest = ground.load, sorted(_rooms(ground), reverse=True)[:ranks]
    whole = sum(room // max(1, _smallest(load)) for room in roomiest)
    return sum(roomiest) >= _all_needs(load) and whole >= load.layers


def _pool(ground: Field, seed: int) -> list[int]:
    """Whom a chain from `seed` may take: everybody, or the roomiest, fastest and nearest."""
    members = ground.members
    every = [i for i in range(len(members)) if i != seed]
    if len(every) <= POOL:
        return every
    third = POOL // 3
    by_room = sorted(every, key=lambda i: -members[i].room)[:third]
    by_speed = sorted(every, key=lambda i: members[i].read_s)[:third]
    near = sorted(every, key=lambda i: ground.hop(seed, i))[:third]
    return list(dict.fromkeys([*by_room, *by_speed, *near]))


def _grown(ground: Field, seed: int, ranks: int) -> tuple[int, ...] | None:
    """The cycle that grows from a seed by cheapest insertion (Rosenkrantz, Stearns and Lewis,
    1977), reading time counted; None when the model cannot fit around it."""
    members, hop = ground.members, ground.hop
    pool = sorted(_pool(ground, seed), key=lambda i: -members[i].room)
    reading = {i: ground.load.read_bytes / ranks * members[i].read_s for i in pool}
    detour = {i: (hop(seed, i) + hop(i, seed), seed) for i in pool}
    after, direct = {seed: seed}, {seed: 0.0}
    missing = _all_needs(ground.load) - (members[seed].room - FIXED_BYTES)
    while len(after) < ranks:
        fit = _that_leave_enough(ground, pool, ranks - len(after) - 1, missing)
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


def _that_leave_enough(
    ground: Field, pool: Sequence[int], more: int, missing: int
) -> Sequence[int]:
    """Of a pool, roomiest first, those with which and the roomiest `more` others enough is left."""
    rooms = [ground.members[i].room - FIXED_BYTES for i in pool]
    with_it, without = sum(rooms[: more + 1]), sum(rooms[:more])
    if with_it < missing:
        return ()
    count = sum(place <= more or without + room >= missing for place, room in enumerate(rooms))
    return pool[:count]


# --- estimates and improvements ---


def _estimate(ground: Field, chain: Sequence[int]) -> float:
    """Seconds per token if layers could be cut anywhere: each stage takes equal time, but for
    those that are full before; infinite when they do not hold the model."""
    members, holds, bytes_ = ground.members, ground.holds, ground.load.read_bytes
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
    return stages + sum(map(ground.hop, chain, (*chain[1:], chain[0])))


def _climbed(ground: Field, line: Line) -> Line:
    """Take the best of the neighbours that promise most, by exact time, while that is faster."""
    number = {member.seat.node: i for i, member in enumerate(ground.members)}
    steps = max(2, STEPS // max(1, len(line.members) // 4))
    for _ in range(CLIMBS):
        chain = tuple(number[member.seat.node] for member in line.members)
        near = sorted(_neighbours(ground, chain), key=lambda one: _estimate(ground, one))[:steps]
        if len(chain) <= FEW:
            near += permutations(chain)
        best = min(_all_timed(ground, near), key=lambda one: one.token_s, default=line)
        if best.token_s >= line.token_s:
            break
        line = best
    return line


def _neighbours(ground: Field, chain: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    members, size = ground.members, len(chain)
    outside = [i for i in _pool(ground, chain[0]) if i not in chain]
    for place in range(size):
        before = chain[place - 1]
        near = sorted(
            outside,
            key=lambda i: ground.hop(before, i) + members[i].read_s * ground.load.read_bytes / size,
        )[: max(2, SWAPS // size)]
        for other in near:
            yield (*chain[:place], other, *chain[place + 1 :])
    for start in range(size - 1):
        for end in range(start + 2, size + 1):
            yield (*chain[:start], *reversed(chain[start:end]), *chain[end:])


def _turned(chain: Sequence[int]) -> list[tuple[int, ...]]:
    """A cycle can be opened anywhere and read both ways; long ones are tried at few places."""
    size = len(chain)
    places = range(size) if size <= 4 else (0, size // 2)
    turned = [(*chain[at:], *chain[:at]) for at in places]
    return [*turned, *((tuple(reversed(one))) for one in turned)]


# --- exact ---


def _all_timed(ground: Field, chains: Iterable[tuple[int, ...]]) -> list[Line]:
    lines = (timed(ground, chain) for chain in dict.fromkeys(chains))
    return [line for line in lines if line is not None]


def _enumerated(ground: Field, line: Line) -> Line:
    """The fastest of all orders of as many members that might be faster."""
    every = permutations(range(len(ground.members)), len(line.members))
    orders = sorted((_least_s(ground, one), one) for one in every)
    for least_s, order in orders[:MOST_TIMED]:
        if least_s >= line.token_s:
            break
        other = timed(ground, order)
        if other is not None and other.token_s < line.token_s:
            line = other
    return line


def _least_s(ground: Field, order: Sequence[int]) -> float:
    """Seconds that a token takes at least: its hops, and reading by the fastest member alone."""
    back = hop_s(ground.link(order[-1], order[0]), TOKEN_BYTES)
    hops = sum(ground.hop(a, b) for a, b in pairwise(order))
    fastest = min(ground.members[i].read_s for i in order)
    return hops + back + ground.load.read_bytes * fastest


def _any_order(ground: Field, ranks: int) -> list[tuple[int, ...]]:
    """An order in which the layers fit into the roomiest members, whatever their speed, if there
    is one; beyond `EXACT` ranks only largest and smallest first are tried.

    Dynamic programming over sets: every end that a set of members can have as the first stages.
    If any members hold the model in some order, so do the roomiest in theirs (the order of the
    members that they replace, largest for largest).
    """
    load, members = ground.load, ground.members
    every = sorted(range(len(members)), key=lambda i: -members[i].room)[:ranks]
    if ranks > EXACT:
        return [tuple(every), tuple(reversed(every))]
    opening, closing = load.edge_needs
    orders: dict[int, dict[int, tuple[int, ...]]] = {0: {0: ()}}
    for stage in range(ranks):
        edge = opening if stage == 0 else closing if stage == ranks - 1 else FIXED_BYTES
        most = load.layers - (ranks - 1 - stage)
        longer: dict[int, dict[int, tuple[int, ...]]] = {}
        for taken, known in orders.items():
            for place, node in enumerate(every):
                if taken >> place & 1:
                    continue
                slack = members[node].room - edge
                farthest = partial(_farthest, load, slack, most)
                there = longer.setdefault(taken | 1 << place, {})
                for end, first in next_ends(known, farthest).items():
                    there.setdefault(end, (*known[first], node))
        orders = longer
    return [known[load.layers] for known in orders.values() if load.layers in known]


def _farthest(load: Layered, slack: int, most: int, first: int) -> int:
    return min(bisect_right(load.needs, load.needs[first] + slack) - 1, most)
