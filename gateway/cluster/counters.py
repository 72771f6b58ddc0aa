"""Counts of what passes, kept plain so that a token costs next to nothing.

Pure. Tokens are counted per model as they arrive; `drain` gives what has gathered since the last
time, for the shell to put where Prometheus reads it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

ITL_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
    float("inf"),
)  # fmt: skip
"""Upper bounds, inclusive, of inter-token latency."""


@dataclass(slots=True)
class ModelCounters:
    """One model's tokens since the last drain. `itl_counts[i]` goes with ITL_BOUNDS_S[i]."""

    tokens: int = 0
    itl_sum_s: float = 0.0
    itl_counts: list[int] = field(default_factory=lambda: [0] * len(ITL_BOUNDS_S))


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

    def drain(self) -> dict[str, ModelCounters]:
        """Return the counts gathered so far, by model, and begin anew."""
        models, self.models = self.models, _none_yet()
        return models
