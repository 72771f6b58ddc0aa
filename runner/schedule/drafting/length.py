"""How many drafted tokens a step should verify.

Pure. A step that verifies k drafted tokens takes longer than a plain step, but yields one more
token for each draft token that the model accepts. The best k gives the most tokens per second. It
is 0 if plain steps are faster than any draft.

If the model's KV cannot be cut, a wrong token in a draft also costs time later: the row's next step
must compute the accepted tokens of that draft again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The lengths that a draft can have. Costs are given for each of them."""
COLUMN_SHARE = 0.1
"""The assumed cost of one more column, as a share of a plain step, in steps that are wider than any
that was measured."""
GAIN = 1.05
"""A draft is verified only if it is expected to give at least this many times the tokens per second
of plain steps."""
WAIT_SHARE = 0.2
"""The cost of waiting for a step's result before planning the next step, as a share of a plain
step."""


def costs_of(measured: Sequence[tuple[int, float]]) -> tuple[float, ...]:
    """Return the cost of a step that verifies a draft, for each length in `LENGTHS`. `measured` has
    pairs of a number of columns (ascending, above 1) and the cost of such a step. All costs are
    multiples of the cost of a plain step."""
    points = [(1, 1.0), *measured]
    last, cost = points[-1]
    points.append((last + LENGTHS[-1], cost + COLUMN_SHARE * LENGTHS[-1]))
    costs: list[float] = []
    for columns in (1 + length for length in LENGTHS):
        for (low, below), (high, above) in pairwise(points):
            if low <= columns <= high:
                costs.append(below + (above - below) * (columns - low) / (high - low))
                break
    return tuple(costs)


def again_of(measured: Sequence[tuple[int, float]]) -> tuple[float, ...]:
    """Return what it costs if a step also computes 1, 2, ... tokens again, as multiples of the cost
    of a plain step. `measured` has the same pairs as in `costs_of`."""
    lengths, costs = (0, *LENGTHS), (1.0, *costs_of(measured))
    again: list[float] = []
    for (low, below), (high, above) in pairwise(zip(lengths, costs, strict=True)):
        again += [
            below + (above - below) * (columns - low) / (high - low) - 1.0
            for columns in range(low + 1, high + 1)
        ]
    return tuple(again)


def best_length(
    rates: Sequence[float],
    plain_s: float,
    verify_s: Sequence[float],
    again_s: Sequence[float] = (),
) -> tuple[int, float]:
    """Return the best length of a draft, and how many tokens it is expected to yield in the time of
    one plain step.

    `rates[i]`: the chance that token i is right if all before it are. `plain_s`: the seconds of a
    plain step. `verify_s[i]`: the seconds of a step that verifies `LENGTHS[i]` tokens.
    `again_s[i]`: the seconds it takes to compute i + 1 tokens again after a wrong guess; empty if
    that is never needed. Length 0 means that plain steps are best; the second value is then 1.
    """
    best, most = 0, 1.0
    expected, chance, before, lost_s = 1.0, 1.0, 0, 0.0
    for length, length_s in zip(LENGTHS, verify_s, strict=True):
        if length > len(rates):
            break
        for at in range(before, length):
            if again_s:
                lost_s += chance * (1.0 - rates[at]) * again_s[at]
            chance *= rates[at]
            expected += chance
        before = length
        gain = expected * plain_s / (length_s + lost_s)
        if gain > most and gain >= GAIN:
            best, most = length, gain
    return best, most


def worth_waiting(
    rates: Sequence[float],
    plain_s: float,
    verify_s: Sequence[float],
    again_s: Sequence[float] = (),
) -> bool:
    """Return whether to read the result of the step in flight before planning the next step, so
    that the next step can verify a draft. `rates[0]` is the chance of the token in flight, the
    others are those of the draft after it."""
    if len(rates) < 2:
        return False
    length, gain = best_length(rates[1:], plain_s, verify_s, again_s)
    if not length:
        return False
    saved = (gain - 1.0) * verify_s[LENGTHS.index(length)] / plain_s
    return rates[0] * saved > WAIT_SHARE
