"""Tests whether drawn tokens fit a known distribution, with Pearson's chi-square.

Pure. The limit is the value that a correct sampler exceeds in one of 10,000 tests (Wilson and
Hilferty's approximation). Tokens that are expected less often than `FEWEST` times form one bin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEWEST = 10.0
Z = 3.719
"""The standard normal quantile of 1 - 1/10,000."""


@dataclass(frozen=True, slots=True)
class ChiSquareFit:
    """The chi-square test of the tokens drawn with one sampling setting, in `bins` classes.
    `impossible` counts draws of tokens that truncation (such as top-k) excludes."""

    draws: int
    bins: int
    chi_square: float
    limit: float
    impossible: int

    @property
    def is_good(self) -> bool:
        """Return whether the draws fit. A test of fewer than four bins shows nothing."""
        return self.bins >= 4 and self.chi_square <= self.limit and self.impossible == 0


def expected_of(logprobs: Sequence[float], sampling: Mapping[str, float]) -> dict[int, float]:
    """Return the probability of each possible token: temperature, then top-k, then top-p over the
    rest, then min-p against the likeliest."""
    scaled = [value / sampling["temperature"] for value in logprobs]
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    if top_k := int(sampling.get("top_k", 0)):
        order = order[:top_k]
    weights = {token: math.exp(scaled[token] - scaled[order[0]]) for token in order}
    if (top_p := sampling.get("top_p", 1.0)) < 1.0:
        weights = _nucleus(weights, top_p)
    least = sampling.get("min_p", 0.0)
    weights = {token: weight for token, weight in weights.items() if weight >= least}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def fit_of(expected: Mapping[int, float], counts: Mapping[int, int]) -> ChiSquareFit:
    """Return the test of the counts against the probabilities."""
    draws = sum(counts.values())
    single = [token for token, share in expected.items() if share * draws >= FEWEST]
    pairs = [(expected[token] * draws, counts.get(token, 0)) for token in single]
    rest = draws - sum(wanted for wanted, _ in pairs)
    others = sum(n for token, n in counts.items() if token in expected and token not in single)
    if rest >= FEWEST:
        pairs.append((rest, others))
    chi_square = sum((seen - wanted) ** 2 / wanted for wanted, seen in pairs)
    impossible = sum(n for token, n in counts.items() if token not in expected)
    return ChiSquareFit(draws, len(pairs), chi_square, limit_of(max(1, len(pairs) - 1)), impossible)


def limit_of(degrees: int) -> float:
    """Return the chi-square that a correct sampler exceeds in one of 10,000 tests."""
    part = 2.0 / (9.0 * degrees)
    return degrees * (1.0 - part + Z * math.sqrt(part)) ** 3


def _nucleus(weights: Mapping[int, float], top_p: float) -> dict[int, float]:
    """Return the likeliest tokens; a token stays if the probabilities before it sum to less than
    top-p."""
    wanted, before = top_p * sum(weights.values()), 0.0
    stays: dict[int, float] = {}
    for token, weight in weights.items():
        if before >= wanted:
            break
        stays[token] = weight
        before += weight
    return stays
