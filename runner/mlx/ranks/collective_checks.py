# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval` untyped)
"""Talks to MLX: makes the exchanges of the collective test (sum, gather, send and receive), and
checks their results.

Each rank runs one exchange at a time. The value of element i of rank r is p(i, r) = ((i mod P) x A
+ r x B) mod P. P is the largest prime below 2^16. A sum over up to 256 ranks is an integer below
2^24, so float32 holds it exactly, in any order of addition. So a wrong value is an error, not
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, cast

import mlx.core as mx

from bus.wire.messages.collectives import Check
from runner.group.lockstep import RankContext
from runner.mlx.ranks.comm import GroupComm, meet

PLACES, PER_PLACE, PER_RANK = 65_521, 7_919, 104_729
LOOK = 1 << 20
"""How many elements are made or checked at once. This limits memory."""

Expected = Callable[[int, int], mx.array]
"""A function that returns the expected elements from index `start` to before `stop`."""


def open_checks(context: RankContext, memory_limit_bytes: int) -> CollectiveChecks:
    """Verify in the calling thread that all ranks belong to the group, and return the checks. This
    thread must make all later exchanges. Raises CannotForm if a rank does not belong to the
    group."""
    mx.set_memory_limit(memory_limit_bytes)
    mx.set_cache_limit(0)
    return CollectiveChecks(meet(context))


def pattern(rank: int, start: int, stop: int) -> mx.array:
    """Return the test pattern p(i, rank), as the module's docstring defines it, for i in [start,
    stop), as float32."""
    places = mx.arange(start, stop, dtype=mx.int32) % PLACES
    return ((places * PER_PLACE + rank * PER_RANK) % PLACES).astype(mx.float32)


def pattern_sum(ranks: int, start: int, stop: int) -> mx.array:
    """Return the sum of all ranks' patterns, float32."""
    total = pattern(0, start, stop)
    for rank in range(1, ranks):
        total = total + pattern(rank, start, stop)
    return total


class CollectiveChecks:
    """Makes the exchanges of the collective test over MLX's ring or JACCL, and checks their
    results. Implements `runner.group.collectives.Exchanges`."""

    def __init__(self, comm: GroupComm) -> None:
        self.mlx_version = metadata.version("mlx")
        self.device = "metal" if mx.metal.is_available() else "cpu"
        self._rank = comm.context.rank
        self.size = comm.context.size
        self._group: Any = comm.group
        self._given: mx.array | None = None
        self._got: mx.array | None = None
        self._elements = 0

    @property
    def peak_bytes(self) -> int:
        return mx.get_peak_memory()

    def barrier(self) -> Check:
        """Sum a 1 from every rank, and check that the sum is the number of ranks. No rank returns
        before all ranks have called this."""
        here = mx.distributed.all_sum(mx.ones((1,)), group=self._group)
        return look("barrier", here, lambda start, stop: mx.full((1,), float(self.size)))

    def check_sum(self, elements: int) -> Check:
        """Sum patterns of this many elements over all ranks, and count wrong elements."""
        self.prepare(elements)
        self.sum_round()
        check = self.check_round()
        self.release()
        return check

    def check_gather(self, elements: int) -> Check:
        """Gather the patterns of all ranks in rank order, and count wrong elements."""
        gathered = mx.distributed.all_gather(self._pattern(elements), group=self._group)
        mx.eval(gathered)

        def expected(start: int, stop: int) -> mx.array:
            """Return elements `start` to `stop` of a correct gather."""
            parts: list[mx.array] = []
            while start < stop:
                rank, place = divmod(start, elements)
                end = min(stop, (rank + 1) * elements)
                parts.append(pattern(rank, place, place + end - start))
                start = end
            return mx.concatenate(parts)

        return look(f"all_gather {elements}", gathered, expected)

    def check_relay(self, elements: int) -> Check:
        """Pass patterns to the next rank, and then to the previous rank. Count the wrong elements
        that this rank receives."""
        rank, size = self._rank, self.size
        up, down = (rank + 1) % size, (rank - 1) % size
        there = self._passed(elements, source=down, target=up)
        back = self._passed(elements, source=up, target=down)
        both = mx.concatenate([there, back])

        def expected(start: int, stop: int) -> mx.array:
            """Return elements `start` to `stop` of a correct result: first the pattern of the rank
            below, then that of the rank above."""
            whole = mx.concatenate([pattern(down, 0, elements), pattern(up, 0, elements)])
            return whole[start:stop]

        return look(f"send and recv {elements}", both, expected)

    def prepare(self, elements: int) -> None:
        """Make the pattern that the following rounds sum: `elements` float32 values."""
        self._elements = elements
        self._given = self._pattern(elements)

    def sum_round(self) -> None:
        """Sum the pattern over all ranks, and wait for it."""
        assert self._given is not None, "sum_round was called before prepare"
        self._got = None
        self._got = mx.distributed.all_sum(self._given, group=self._group)
        mx.eval(self._got)

    def check_round(self) -> Check:
        """Count the wrong elements of the sum that the last round computed."""
        assert self._got is not None, "check_round was called before sum_round"
        return look(
            f"all_sum {self._elements}",
            self._got,
            lambda start, stop: pattern_sum(self.size, start, stop),
        )

    def release(self) -> None:
        """Free the memory of the pattern and of the last sum."""
        self._given = self._got = None
        mx.clear_cache()

    def _pattern(self, elements: int) -> mx.array:
        parts: list[mx.array] = []
        for start, stop in _pieces(elements):
            parts.append(pattern(self._rank, start, stop))
            mx.eval(parts[-1])
        made = mx.concatenate(parts) if len(parts) > 1 else parts[0]
        mx.eval(made)
        return made

    def _passed(self, elements: int, *, source: int, target: int) -> mx.array:
        """Send this rank's pattern to rank `target`, and return the pattern that rank `source`
        sent. Rank 0 sends first; every other rank sends after it has received, so that each send
        meets a waiting receiver."""
        mine = self._pattern(elements)
        if self._rank == 0:
            mx.eval(mx.distributed.send(mine, target, group=self._group))
        got = mx.distributed.recv((elements,), mx.float32, source, group=self._group)
        mx.eval(got)
        if self._rank != 0:
            mx.eval(mx.distributed.send(mine, target, group=self._group))
        return got


def look(name: str, got: mx.array, expected: Expected) -> Check:
    """Compare every element of `got` with the expected one. Return how many are wrong, and the
    first wrong one."""
    wrong, first = 0, None
    for start, stop in _pieces(got.size):
        differs = got[start:stop] != expected(start, stop)
        count = int(cast(int, mx.sum(differs).item()))
        if count and first is None:
            first = start + int(cast(int, mx.argmax(differs).item()))
        wrong += count
    return Check(name=name, elements=got.size, wrong=wrong, first_wrong=first)


def _pieces(elements: int) -> Iterator[tuple[int, int]]:
    for start in range(0, elements, LOOK):
        yield start, min(elements, start + LOOK)
