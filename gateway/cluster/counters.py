"""Counts of what passes, kept plain so that a token costs next to nothing.

Pure. Tokens are counted per model as they arrive; `drain` gives what has gathered since the last
time, for the shell to put where Prometheus reads it. What that reads are totals, of which
`RecentMinute` makes figures.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from typing_extensions import TypedDict

ITL_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
    float("inf"),
)  # fmt: skip
"""Upper bounds, inclusive, of inter-token latency."""
MINUTE_S = 60.0


@dataclass(slots=True)
class ModelCounters:
    """One model's tokens and loads since the last drain. `itl_counts[i]` goes with ITL_BOUNDS_S[i];
    `loads_s` has the seconds of each load."""

    tokens: int = 0
    itl_sum_s: float = 0.0
    itl_counts: list[int] = field(default_factory=lambda: [0] * len(ITL_BOUNDS_S))
    loads_s: list[float] = field(default_factory=list[float])


def _none_yet() -> defaultdict[str, ModelCounters]:
    return defaultdict(ModelCounters)


@dataclass(slots=True)
class Counters:
    """All models' counts."""

    models: dict[str, ModelCounters] = field(default_factory=_none_yet)

    def tokens(self, model: str, count: int, gap_s: float | None) -> None:
        """Count `count` tokens that came together, `gap_s` after the ones before (None: the first).

        Tokens that come together share the gap, as if evenly spaced."""
        mine = self.models[model]
        mine.tokens += count
        if gap_s is not None and count:
            mine.itl_sum_s += gap_s
            mine.itl_counts[bisect_left(ITL_BOUNDS_S, gap_s / count)] += count

    def loaded(self, model: str, seconds: float) -> None:
        """Count a load of a copy that took so many seconds."""
        self.models[model].loads_s.append(seconds)

    def drain(self) -> dict[str, ModelCounters]:
        """Return the counts gathered so far, by model, and begin anew."""
        models, self.models = self.models, _none_yet()
        return models


class HistogramTold(TypedDict):
    """A histogram: the upper bounds (the last is null: infinity), a count for each, and the sum."""

    bounds: list[float | None]
    counts: list[int]
    sum: float


class TotalsTold(TypedDict):
    """What a node's gateways have counted; `requests` by how they ended."""

    requests: dict[str, int]
    prompt_tokens: int
    generation_tokens: int
    http_errors: int
    ttft_s: HistogramTold
    itl_s: HistogramTold
    e2e_s: HistogramTold


@dataclass(frozen=True, slots=True)
class HistogramTotals:
    """A histogram: `counts[i]` values were at most `bounds[i]` and more than the bound before."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    def plain(self) -> HistogramTold:
        """Return it as plain values; infinity as None."""
        bounds = [bound if math.isfinite(bound) else None for bound in self.bounds]
        return {"bounds": bounds, "counts": list(self.counts), "sum": self.sum}


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """The counts of all HTTP processes of this node, also of earlier gateways, all models together.
    A histogram has its upper bounds (the last is infinity), a count for each, and the sum."""

    requests: Mapping[str, int]
    prompt_tokens: int
    generation_tokens: int
    http_errors: int
    ttft_s: HistogramTotals
    itl_s: HistogramTotals
    e2e_s: HistogramTotals

    def plain(self) -> TotalsTold:
        """Return them as plain values; infinity as None."""
        return {
            "requests": dict(self.requests),
            "prompt_tokens": self.prompt_tokens,
            "generation_tokens": self.generation_tokens,
            "http_errors": self.http_errors,
            "ttft_s": self.ttft_s.plain(),
            "itl_s": self.itl_s.plain(),
            "e2e_s": self.e2e_s.plain(),
        }


class _Sample(NamedTuple):
    at: float
    tokens: int
    ended: int
    seconds: float


class RecentFigures(NamedTuple):
    """For how long this process has counted. Of the last minute: tokens of answers per second, on
    average and between the two samples that had most; seconds from the arrival of a request to its
    end, on average over those that ended."""

    uptime_s: float = 0.0
    avg_tps_60s: float | None = None
    peak_tps_60s: float | None = None
    avg_latency_60s: float | None = None


class RecentMinute:
    """What the gateway did lately, out of totals that only grow; time arrives as `now`. A sample is
    noted whenever a snapshot is made: each second while one is read, else each ten seconds, in the
    HTTP process that keeps the history. What one sample alone cannot tell is None."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._samples: deque[_Sample] = deque()

    def noted(self, totals: NodeTotals, now: float) -> RecentFigures:
        """Note a sample; return the figures of the minute that ends with it. Counts that went back
        (their files were removed) begin anew."""
        latest = _Sample(now, totals.generation_tokens, sum(totals.e2e_s.counts), totals.e2e_s.sum)
        known = self._samples
        if known and (latest.tokens < known[-1].tokens or latest.ended < known[-1].ended):
            known.clear()
        known.append(latest)
        while known[0].at < now - MINUTE_S:
            known.popleft()
        first, last = known[0], known[-1]
        if last.at <= first.at:
            return RecentFigures(now - self._began)
        spans = [(after.tokens - before.tokens, after.at - before.at)
                 for before, after in pairwise(known)]  # fmt: skip
        ended = last.ended - first.ended
        return RecentFigures(
            uptime_s=now - self._began,
            avg_tps_60s=(last.tokens - first.tokens) / (last.at - first.at),
            peak_tps_60s=max(tokens / seconds for tokens, seconds in spans if seconds > 0),
            avg_latency_60s=(last.seconds - first.seconds) / ended if ended else None,
        )
