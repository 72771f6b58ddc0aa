"""Ranges of measured times. Pure: what a set of samples says about the true time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

LEAST_SAMPLES = 5
"""With fewer undisturbed samples there is no range."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time of one product: the median of all samples, and a range. The true median lies in the
    range with about 95 % confidence, as far as the rounds show how the machine's speed drifts."""

    low_s: float
    median_s: float
    high_s: float


def span_of(rounds: Sequence[Sequence[float]]) -> TimeRange | None:
    """Return the range of the median; None if there are too few samples.

    `rounds` are samples that were taken at different times. The range comes from the ranks of all
    samples together. It assumes no distribution, because delays are not normally distributed. With
    fewer than 9 samples it contains all of them. It is extended to the median of each round.
    """
    ordered = sorted(sample for samples in rounds for sample in samples)
    count = len(ordered)
    if count < LEAST_SAMPLES:
        return None
    rank = max(0, int((count - 1.96 * sqrt(count)) / 2))
    medians = [median(samples) for samples in rounds if samples]
    low_s, high_s = min(ordered[rank], *medians), max(ordered[count - 1 - rank], *medians)
    return TimeRange(low_s, median(ordered), high_s)
