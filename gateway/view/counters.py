"""Counts of requests and tokens, stored as plain numbers so that counting a token costs next to
nothing.

Pure. Tokens are counted per model as they arrive. `drain` returns the counts since the last drain;
the caller adds them to the Prometheus totals. `RecentMinute` computes the figures of the last
minute from those totals.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from typing_extensions import TypedDict

from bus.wire.messages.requests import (
    Drafter,
    DrafterCount,
    ProposalCost,
    Usage,
    sum_drafters,
)
from bus.wire.proposals import sum_proposals

ITL_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
    float("inf"),
)  # fmt: skip
"""Upper bounds of the buckets of inter-token latency. A bucket includes its bound."""
DRAFTS = (
    ("num_drafts", "Drafts verified by speculative decoding."),
    ("num_draft_tokens", "Tokens of verified drafts."),
    ("num_accepted_tokens", "Tokens of verified drafts that the model accepted."),
    ("num_passes", "Passes of drafters' networks."),
)
"""Counters of speculative decoding, each with its help text. The names follow vLLM's metrics, whose
names contain `spec_decode`."""
SplitOutcome = Literal["elsewhere", "own", "failed"]
"""The outcome for a prompt that another node could compute. `elsewhere`: that node computed it.
`own`: its own runner did, because that was expected to be no slower. `failed`: its own runner did,
after the other node failed."""
MINUTE_S = 60.0


@dataclass(slots=True)
class ModelCounters:
    """One model's tokens, drafts and loads since the last `Counters.drain`. `itl_counts[i]` belongs
    to `ITL_BOUNDS_S[i]`. `drafters` and `proposals` have counts for `DRAFTS`, by drafter. `loads_s`
    has the seconds of each load. `losses` counts requests whose runner was lost, by what became of
    them. `splits` counts prompts that another node could compute, by who computed them."""

    tokens: int = 0
    itl_sum_s: float = 0.0
    itl_counts: list[int] = field(default_factory=lambda: [0] * len(ITL_BOUNDS_S))
    loads_s: list[float] = field(default_factory=list[float])
    drafters: dict[Drafter, DrafterCount] = field(default_factory=dict[Drafter, DrafterCount])
    proposals: dict[Drafter, ProposalCost] = field(default_factory=dict[Drafter, ProposalCost])
    losses: Counter[str] = field(default_factory=Counter[str])
    splits: Counter[SplitOutcome] = field(default_factory=Counter[SplitOutcome])

    def draft_counts(self) -> Iterator[tuple[Drafter, tuple[int, ...]]]:
        """Yield each drafter with its counts, in the order of `DRAFTS`."""
        for drafter, counts in self.drafters.items():
            yield drafter, (*counts, self.proposals.get(drafter, (0, 0))[0])


def _none_yet() -> defaultdict[str, ModelCounters]:
    return defaultdict(ModelCounters)


@dataclass(slots=True)
class Counters:
    """The counts of all models since the last drain."""

    models: dict[str, ModelCounters] = field(default_factory=_none_yet)

    def tokens(self, model: str, count: int, gap_s: float | None) -> None:
        """Count `count` tokens that arrived together, `gap_s` after the previous tokens (None: no
        tokens came before).

        The gap is divided evenly between the tokens.
        """
        mine = self.models[model]
        mine.tokens += count
        if gap_s is not None and count:
            mine.itl_sum_s += gap_s
            mine.itl_counts[bisect_left(ITL_BOUNDS_S, gap_s / count)] += count

    def drafted(self, model: str, usage: Usage) -> None:
        """Count the drafts of a request that ended and had some."""
        mine = self.models[model]
        mine.drafters = sum_drafters((mine.drafters, usage.drafters))
        mine.proposals = sum_proposals((mine.proposals, usage.proposals))

    def lost(self, model: str, outcome: Literal["resumed", "ended", "culprit"]) -> None:
        """Count a request whose runner was lost and that could have resumed."""
        self.models[model].losses[outcome] += 1

    def split(self, model: str, outcome: SplitOutcome) -> None:
        """Count a prompt that another node could have computed (`prefill_on`)."""
        self.models[model].splits[outcome] += 1

    def loaded(self, model: str, seconds: float) -> None:
        """Count a load of an instance that took `seconds`."""
        self.models[model].loads_s.append(seconds)

    def drain(self) -> dict[str, ModelCounters]:
        """Return the counts so far, by model, and restart at zero."""
        models, self.models = self.models, _none_yet()
        return models


class HistogramTold(TypedDict):
    """A histogram: upper bounds (the last is null: infinity), a count for each, and the sum."""

    bounds: list[float | None]
    counts: list[int]
    sum: float


class TotalsTold(TypedDict):
    """The totals of a node's HTTP processes. `requests` is keyed by outcome."""

    requests: dict[str, int]
    prompt_tokens: int
    generation_tokens: int
    http_errors: int
    ttft_s: HistogramTold
    itl_s: HistogramTold
    e2e_s: HistogramTold


@dataclass(frozen=True, slots=True)
class HistogramTotals:
    """A histogram. `counts[i]` is the number of values that were at most `bounds[i]` and above the
    bound before it."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    def plain(self) -> HistogramTold:
        """Return the histogram as plain values for JSON, with None for infinity."""
        bounds = [bound if math.isfinite(bound) else None for bound in self.bounds]
        return {"bounds": bounds, "counts": list(self.counts), "sum": self.sum}


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """The totals of all HTTP processes of this node over all models, earlier gateways included.
    `requests` is keyed by outcome."""

    requests: Mapping[str, int]
    prompt_tokens: int
    generation_tokens: int
    http_errors: int
    ttft_s: HistogramTotals
    itl_s: HistogramTotals
    e2e_s: HistogramTotals

    def plain(self) -> TotalsTold:
        """Return the totals as plain values for JSON, with None for infinity."""
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
    """Figures of the last minute, and how long this process has counted.

    `avg_tps_60s`: generated tokens per second. `peak_tps_60s`: the highest rate between two
    samples. `avg_latency_60s`: mean seconds from arrival to end, over requests that ended.
    """

    uptime_s: float = 0.0
    avg_tps_60s: float | None = None
    peak_tps_60s: float | None = None
    avg_latency_60s: float | None = None


class RecentMinute:
    """Figures of the last minute, computed from totals that only grow. Time arrives as `now`.

    Each snapshot adds a sample. The HTTP process that keeps the history makes one every ten
    seconds, or every second while a client reads snapshots. A figure that needs two samples is None
    with one.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._samples: deque[_Sample] = deque()

    def noted(self, totals: NodeTotals, now: float) -> RecentFigures:
        """Add a sample. Return the figures of the minute that ends with it. If totals have become
        smaller (their files were removed), the minute starts again."""
        latest = _Sample(now, totals.generation_tokens, sum(totals.e2e_s.counts), totals.e2e_s.sum)
        samples = self._samples
        if samples and (latest.tokens < samples[-1].tokens or latest.ended < samples[-1].ended):
            samples.clear()
        samples.append(latest)
        while samples[0].at < now - MINUTE_S:
            samples.popleft()
        first, last = samples[0], samples[-1]
        if last.at <= first.at:
            return RecentFigures(now - self._began)
        spans = [(after.tokens - before.tokens, after.at - before.at)
                 for before, after in pairwise(samples)]  # fmt: skip
        ended = last.ended - first.ended
        return RecentFigures(
            uptime_s=now - self._began,
            avg_tps_60s=(last.tokens - first.tokens) / (last.at - first.at),
            peak_tps_60s=max(tokens / seconds for tokens, seconds in spans if seconds > 0),
            avg_latency_60s=(last.seconds - first.seconds) / ended if ended else None,
        )
