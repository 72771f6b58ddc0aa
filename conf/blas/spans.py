"""Ranges of measured times. Pure: what a set of samples says about the true time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

LEAST_SAMPLES = 5
"""Fewer undisturbed samples give no range."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time of one product: the median of the samples, and the range of the true median with
    about 95 % confidence."""

    low_s: float
    median_s: float
    high_s: float


def span_of(samples: Sequence[float]) -> TimeRange | None:
    """Return the range of the median, by ranks; None if there are too few samples.

    No distribution is assumed, because delays are not normal. With fewer than 9 samples the range
    is that of all samples.
    """
    count = len(samples)
    if count < LEAST_SAMPLES:
        return None
    ordered = sorted(samples)
    rank = max(0, int((count - 1.96 * sqrt(count)) / 2))
    return TimeRange(ordered[rank], median(ordered), ordered[count - 1 - rank])
