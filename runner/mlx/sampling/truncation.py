"""Talks to MLX: computes top-k, top-p and min-p as one threshold per row.

The order is temperature, then top-k, then top-p over the tokens that top-k keeps, then min-p
relative to the likeliest token. Each of the three keeps the tokens at or above some logit, so the
highest of these logits is the row's threshold. It is minus infinity for rows that use none of the
three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

import mlx.core as mx

MAX_PARTITION = 1024
MAX_SORTED = 1 << 14
HALVINGS = 26
SPAN = 48.0


@dataclass(frozen=True, slots=True)
class Cuts:
    """The top-k, top-p and min-p of each row."""

    top_k: tuple[int, ...]
    top_p: tuple[float, ...]
    min_p: tuple[float, ...]

    @property
    def none(self) -> bool:
        """Return whether no row uses top-k, top-p or min-p."""
        return not (any(self.top_k) or min(self.top_p) < 1.0 or any(self.min_p))


class Truncation:
    """Computes the thresholds of a fixed set of rows. The rows' settings are put into arrays only
    once."""

    def __init__(self, cuts: Cuts, vocabulary: int, alike: int | None = None) -> None:
        """`alike`: use the method for this many rows (default: the number of rows in `cuts`). The
        method depends on the number of rows, and the methods round differently."""
        self._sorts = (alike or len(cuts.top_p)) * vocabulary <= MAX_SORTED
        self._ks = [k if 0 < k < vocabulary else 0 for k in cuts.top_k]
        self._has_k = mx.array([k > 0 for k in self._ks])[:, None]
        self._last = mx.array([max(k - 1, 0) for k in self._ks])[:, None]
        self._k_max = max(self._ks)
        self._uses_p = min(cuts.top_p) < 1.0
        self._p_within_k = all(k or p >= 1.0 for k, p in zip(self._ks, cuts.top_p, strict=True))
        self._cut_p = mx.array([p < 1.0 for p in cuts.top_p])[:, None]
        self._p = mx.array(cuts.top_p)[:, None]
        self._uses_min = any(cuts.min_p)
        self._min = mx.array(_logs(cuts.min_p))[:, None]

    def threshold(self, scores: mx.array) -> mx.array:
        """Return the smallest logit that each row keeps, (rows, 1), from logits (rows, vocabulary)
        that were divided by the temperature."""
        nothing = mx.array(-float("inf"))
        lowest = mx.full((scores.shape[0], 1), -float("inf"))
        best: mx.array | None = None
        if self._k_max:
            best = self._likeliest(scores)
            kth = mx.take_along_axis(best, self._last, axis=1)
            lowest = mx.where(self._has_k, kth, nothing)
        if self._uses_p:
            if best is not None and self._p_within_k:
                nucleus = _nucleus_of_sorted(mx.where(best >= lowest, best, nothing), self._p)
            elif self._sorts:
                remaining = mx.where(scores >= lowest, scores, nothing)
                nucleus = _nucleus_of_sorted(_descending(remaining), self._p)
            else:
                nucleus = _nucleus_by_halving(mx.where(scores >= lowest, scores, nothing), self._p)
            lowest = mx.maximum(lowest, mx.where(self._cut_p, nucleus, nothing))
        if self._uses_min:
            lowest = mx.maximum(lowest, mx.max(scores, axis=1, keepdims=True) + self._min)
        return lowest

    def _likeliest(self, scores: mx.array) -> mx.array:
        if self._k_max > MAX_PARTITION:
            return _descending(scores)
        return _descending(mx.topk(scores, self._k_max, axis=1))


def _descending(scores: mx.array) -> mx.array:
    return -mx.sort(-scores, axis=1)


def _nucleus_of_sorted(best: mx.array, p: mx.array) -> mx.array:
    """Return the smallest score that each row keeps by top-p. `best` are scores in descending
    order. A token is kept if the probabilities of the tokens before it sum to less than p."""
    mass = mx.softmax(best, axis=1)
    stays = (mx.cumsum(mass, axis=1) - mass) < p
    count = mx.maximum(mx.sum(stays, axis=1, keepdims=True), 1)
    return mx.take_along_axis(best, count - 1, axis=1)


def _nucleus_by_halving(scores: mx.array, p: mx.array) -> mx.array:
    """Return practically the same threshold as `_nucleus_of_sorted`, but without sorting. Bisection
    finds the highest score such that the tokens at or above it have at least the probability p.

    Scores closer than SPAN / 2**HALVINGS count as equal. Tokens whose score is SPAN below that of
    the likeliest token have no probability in float32.
    """
    top = mx.max(scores, axis=1, keepdims=True)
    mass = mx.exp(scores - top)
    wanted = p * mx.sum(mass, axis=1, keepdims=True)
    low, high = top - SPAN, top
    for _ in range(HALVINGS):
        middle = (low + high) * 0.5
        enough = mx.sum(mx.where(scores >= middle, mass, 0.0), axis=1, keepdims=True) >= wanted
        low, high = mx.where(enough, middle, low), mx.where(enough, high, middle)
    return low


def _logs(values: Sequence[float]) -> list[float]:
    return [log(value) if value > 0.0 else -inf for value in values]
