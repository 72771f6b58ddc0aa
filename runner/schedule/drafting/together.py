"""How many drafted tokens a step of several rows should verify.

Pure. A step computes equally many columns of each row, so the longest draft decides what the step
costs, also for rows without a draft. The best length gives all rows together the most tokens per
second. But a row must not become much slower so that others become faster. If a row has lost more
time than `MOST_LAG` and `LAG_SHARE` allow, a step has drafts only if this row also gains by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import mul

from runner.schedule.drafting.length import LENGTHS

SHARED_GAIN = 1.1
"""A step verifies drafts of several rows only if it is expected to give this many times the tokens
per second of plain steps. The margin is for work that the measurements at load leave out: sampling
at more positions and packing the KV."""
MOST_LAG = 4.0
LAG_SHARE = 0.05
"""A row may lose the time of `MOST_LAG` plain steps, plus `LAG_SHARE` plain steps per token, by
steps with drafts of several rows."""


class SharedCosts:
    """The costs of steps that verify drafts of several rows, as multiples of the cost of a plain
    step with as many rows. `measured` has, for each measured number of rows (ascending from 1),
    pairs of a number of columns (ascending) and the cost."""

    def __init__(self, measured: Sequence[tuple[int, Sequence[tuple[int, float]]]]) -> None:
        self._measured = measured
        self._costs: dict[int, tuple[float, ...]] = {}

    def of(self, rows: int) -> tuple[float, ...]:
        """Return the cost for each length in `LENGTHS`, up to the longest draft that was measured
        with about as many rows."""
        if rows not in self._costs:
            self._costs[rows] = self._between(rows)
        return self._costs[rows]

    def _between(self, rows: int) -> tuple[float, ...]:
        """Interpolate linearly between the measured numbers of rows. Beyond the largest, continue
        the line of the last two. But a column never costs more than a plain step."""
        if len(self._measured) < 2:
            return ()
        pairs = list(pairwise(self._measured))
        (low, below), (high, above) = next(
            (pair for pair in pairs if rows <= pair[1][0]), pairs[-1]
        )
        costs: list[float] = []
        for length in LENGTHS:
            columns = 1 + length
            cheap, dear = cost_at(below, columns), cost_at(above, columns)
            if cheap is None or dear is None:
                break
            cost = cheap + (dear - cheap) * (rows - low) / (high - low)
            costs.append(cost if rows <= high else max(dear, min(cost, columns)))
        return tuple(costs)


def cost_at(measured: Sequence[tuple[int, float]], columns: int) -> float | None:
    """Return the cost of a step of `columns` columns, by interpolation; None if no step as wide was
    measured."""
    for (low, below), (high, above) in pairwise([(1, 1.0), *measured]):
        if low <= columns <= high:
            return below + (above - below) * (columns - low) / (high - low)
    return None


def chances_of(rates: Sequence[float]) -> tuple[float, ...]:
    """Return for each token of a draft the chance that it and all before it are right."""
    return tuple(accumulate(rates, mul))


def best_shared_length(
    chances: Sequence[Sequence[float]], costs: Sequence[float], is_late: Sequence[bool]
) -> tuple[int, float]:
    """Return the best limit on the drafts of a step, in tokens. Also return how many tokens a row
    is then expected to get in the time of one plain step, on average.

    `chances[i]`: the chances of the tokens of row i's draft (`chances_of`). `costs[j]`: the cost of
    a step that verifies `LENGTHS[j]` tokens, as a multiple of the cost of a plain step, ascending.
    `is_late[i]`: row i must not lose more time. Length 0 means that plain steps are best; the
    second value is then 1.
    """
    most_tokens = sum(map(sum, chances)) + len(chances)
    if not costs or most_tokens < SHARED_GAIN * costs[0] * len(chances):
        return 0, 1.0  # the usual case
    best, most = 0, 1.0
    longest = max(map(len, chances), default=0)
    expected = [1.0] * len(chances)
    before = 0
    for length, cost in zip(LENGTHS, costs, strict=False):
        if before >= longest:
            break
        for at, of_row in enumerate(chances):
            expected[at] += sum(of_row[before:length])
        before = length
        gain = sum(expected) / (len(expected) * cost)
        loses = any(late and tokens < cost for late, tokens in zip(is_late, expected, strict=True))
        if gain > most and gain >= SHARED_GAIN and not loses:
            best, most = length, gain
    return best, most
