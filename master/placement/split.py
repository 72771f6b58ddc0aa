"""Divides the layers over pipeline stages, so that the slowest stage is as fast as possible within
the memory of each node.

Pure. The objective is PipeDream's (Narayanan et al., 2019): the slowest stage bounds a pipeline
that keeps a micro-batch in flight per stage. For a given order of the nodes, parametric search with
a greedy probe finds the optimum (Pinar and Aykanat, "Fast optimal load balancing algorithms for 1D
partitioning", 2004). In a probe each stage in turn takes all layers that fit into its memory and a
given time; the time suffices if no layer is left. Each probe is two binary searches per stage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from master.placement.memory_cost import FIXED_BYTES, LayerCosts

ROUNDS = 40
"""Maximum number of bisection steps for the best time, before an exact search."""


def split(
    costs: LayerCosts, rooms: Sequence[int], read_s: Sequence[float]
) -> tuple[int, ...] | None:
    """Return bounds b such that stage i has layers [b[i], b[i + 1]), or None if the layers do not
    fit.

    `rooms` are the stages' usable bytes, `read_s` their seconds per byte, in the order of the
    layers. Every stage gets at least one layer. The slowest stage is as fast as any split allows;
    then neighbouring stages are balanced.
    """
    if not 0 < len(rooms) <= costs.layers:
        return None
    stages = _Stages(costs, _slack(costs, rooms), read_s)
    if min(stages.slack) < 0:
        return None
    bounds = stages.probe(float("inf"))
    if bounds is None:
        return None
    best_s = stages.slowest_s(bounds)
    low_s = costs.read_bytes / sum(1.0 / each for each in read_s)
    for _ in range(ROUNDS):
        middle_s = (low_s + best_s) / 2
        closer, _ = stages.greedy(middle_s)
        if closer is None:
            low_s = middle_s
        else:
            bounds, best_s = closer, stages.slowest_s(closer)
        if best_s - low_s <= 1e-4 * best_s:
            break
    while (closer := stages.probe(best_s * (1 - 1e-12))) is not None:
        bounds, best_s = closer, stages.slowest_s(closer)
    return tuple(stages.even_out(bounds))


def fits(costs: LayerCosts, bounds: Sequence[int], rooms: Sequence[int]) -> bool:
    """Return whether every stage of a given split fits into its node's memory (`rooms`, in
    bytes)."""
    needs = costs.needs
    return all(
        needs[last] - needs[first] <= room
        for first, last, room in zip(bounds[:-1], bounds[1:], _slack(costs, rooms), strict=True)
    )


def next_ends(ends: Iterable[int], farthest: Callable[[int], int]) -> dict[int, int]:
    """Return every layer at which one more stage of at least one layer can end, with the first
    layer of that stage.

    `ends` are the possible ends of the stage before. `farthest(first)` is the last possible end of
    a stage that begins with layer `first`; it must not fall as `first` grows.
    """
    first_of: dict[int, int] = {}
    lowest: int | None = None
    for first in sorted(ends, reverse=True):
        end = farthest(first)
        if end <= first:
            continue
        top = end if lowest is None else min(end, lowest - 1)
        first_of.update(dict.fromkeys(range(first + 1, top + 1), first))
        lowest = first + 1
    return first_of


def _slack(costs: LayerCosts, rooms: Sequence[int]) -> list[int]:
    """Return how many bytes each stage has for layers, without embedding and head."""
    opening, closing = costs.edge_bytes
    slack = [room - FIXED_BYTES for room in rooms]
    slack[0] -= opening - FIXED_BYTES
    slack[-1] -= closing - FIXED_BYTES
    return slack


@dataclass(frozen=True, slots=True)
class _Stages:
    """The stages of a pipeline in order: for each, the bytes for layers and the seconds per
    byte."""

    costs: LayerCosts
    slack: Sequence[int]
    read_s: Sequence[float]

    def probe(self, time_s: float) -> list[int] | None:
        """Return a split in which no stage takes longer than `time_s`, or None if there is none.

        The greedy split is exact unless a stage can take no layer; only then all possible ends of
        each stage are tried.
        """
        bounds, stuck = self.greedy(time_s)
        return self._search_ends(time_s) if stuck else bounds

    def greedy(self, time_s: float) -> tuple[list[int] | None, bool]:
        """Return the split within `time_s` in which each stage takes as many layers as it can (None
        if layers are left), and whether any stage could take none."""
        costs, slack, read_s = self.costs, self.slack, self.read_s
        needs, active, stages = costs.needs, costs.active, len(slack)
        bounds, first = [0], 0
        for stage in range(stages - 1):
            within = bisect_right(needs, needs[first] + slack[stage], first) - 1
            reads = active[first] + time_s / read_s[stage]
            in_time = bisect_right(active, reads, first) - 1
            last = min(within, in_time, costs.layers - stages + 1 + stage)
            if last <= first:
                return None, True
            bounds.append(last)
            first = last
        return ([*bounds, costs.layers] if self._last_fits(time_s, first) else None), False

    def slowest_s(self, bounds: Sequence[int]) -> float:
        """Return the seconds of the slowest stage of a split."""
        return max(
            self.costs.read_bytes_of(first, last) * each
            for first, last, each in zip(bounds[:-1], bounds[1:], self.read_s, strict=True)
        )

    def even_out(self, bounds: list[int]) -> list[int]:
        """Move bounds by one layer while that balances two neighbours and neither becomes slower
        than the slower one before; return the bounds."""
        moved = True
        while moved:
            moved = False
            for at in range(1, len(bounds) - 1):
                while (better := self._move_bound(bounds, at)) is not None:
                    bounds, moved = better, True
        return bounds

    def _last_fits(self, time_s: float, first: int) -> bool:
        """Return whether the last stage can take all layers from `first` on."""
        costs = self.costs
        in_time = costs.read_bytes_of(first, costs.layers) * self.read_s[-1] <= time_s
        return in_time and costs.needs[-1] - costs.needs[first] <= self.slack[-1]

    def _search_ends(self, time_s: float) -> list[int] | None:
        """Return a split within `time_s`, found among all possible ends of each stage; None if
        there is none."""
        costs, slack = self.costs, self.slack
        needs, active, stages = costs.needs, costs.active, len(slack)

        def farthest(stage: int, first: int) -> int:
            """Return the last layer at which a stage that begins at `first` can end, within memory
            and time."""
            within = bisect_right(needs, needs[first] + slack[stage], first) - 1
            reads = active[first] + time_s / self.read_s[stage]
            in_time = bisect_right(active, reads, first) - 1
            return min(within, in_time, costs.layers - stages + 1 + stage)

        ends: list[dict[int, int]] = [{0: 0}]
        for stage in range(stages - 1):
            ends.append(next_ends(ends[-1], partial(farthest, stage)))
            if not ends[-1]:
                return None
        closing = [first for first in ends[-1] if self._last_fits(time_s, first)]
        if not closing:
            return None
        bounds = [max(closing), costs.layers]
        for first_of in reversed(ends[1:]):
            bounds.insert(0, first_of[bounds[0]])
        return bounds

    def _move_bound(self, bounds: list[int], at: int) -> list[int] | None:
        """Return the bounds with the bound number `at` moved by one layer, if the two stages beside
        it then still fit in memory and take more equal times; else None."""
        needs, reads = self.costs.needs, self.costs.read_bytes_of
        first, middle, last = bounds[at - 1 : at + 2]
        left_s, right_s = self.read_s[at - 1 : at + 1]
        before = (reads(first, middle) * left_s, reads(middle, last) * right_s)
        for moved in (middle - 1, middle + 1):
            if not first < moved < last:
                continue
            after = (reads(first, moved) * left_s, reads(moved, last) * right_s)
            roomy = (
                needs[moved] - needs[first] <= self.slack[at - 1]
                and needs[last] - needs[moved] <= self.slack[at]
            )
            closer = sum(t * t for t in after) < sum(t * t for t in before) * (1 - 1e-9)
            if roomy and closer and max(after) <= max(before):
                return [*bounds[:at], moved, *bounds[at + 1 :]]
        return None
