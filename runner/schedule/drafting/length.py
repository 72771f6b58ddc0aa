"""How many drafted tokens a step should verify.

Pure. A step that verifies k tokens takes longer than a plain one, and gives one token more for each
accepted one. The best k gives the most tokens per second; if none beats plain steps, it is 0.

If the model's KV cannot be cut, a draft that is wrong somewhere also costs time later: the row's
next step computes its right tokens again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The lengths of drafts."""
COLUMN_SHARE = 0.1
"""The expected cost of one more column in a step of one row, as a share of the step, beyond the
widest step that was measured."""
GAIN = 1.05
"""A draft must promise at least this many times the tokens per second of plain steps."""
WAIT_SHARE = 0.2
"""The cost of reading a step before the next one is planned, as a share of a plain step."""


def costs_of(measured: Sequence[tuple[int, float]]) -> tuple[float, ...]:
    """Return the costs of steps that verify `LENGTHS` tokens, as multiples of a plain step's.
    `measured`: pairs of a step's columns, ascending and above 1, and its cost likewise."""
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
    """Return the costs of computing 1, 2, ... tokens again in a step that gives one token, in plain
    steps. `measured` as in `costs_of`."""
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
    """Return the best length of a draft, and the expected tokens per plain step's time with it.

    `rates[i]`: the chance that token i is right if all before it are. `plain_s`: the seconds of a
    step that gives one token. `verify_s[i]`: those of a step that verifies `LENGTHS[i]` tokens.
    `again_s[i]`: those of computing i + 1 tokens again after a wrong guess; empty: nothing is.
    Length 0 means that plain steps are best; the second value is then 1.
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
    """Return whether to read the step in flight before planning the next one, so that a draft can
    follow. `rates[0]` belongs to the token in flight, the others to the draft after it."""
    if len(rates) < 2:
        return False
    length, gain = best_length(rates[1:], plain_s, verify_s, again_s)
    if not length:
        return False
    saved = (gain - 1.0) * verify_s[LENGTHS.index(length)] / plain_s
    return rates[0] * saved > WAIT_SHARE
